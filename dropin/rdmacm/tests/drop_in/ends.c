// Events of the connection manager: `program CASE PORT [ADDRESS]`. Prints "ok" at the end, or the check that failed.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			exit(1); \
		} \
	} while (0)

static const char *port, *host = "127.0.0.1";

static struct sockaddr_in at(const char *ip)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
	return address;
}

// Takes the next event, which must be `wanted`. The caller acknowledges it.
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&readable, 1, 60000) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != wanted) {
		fprintf(stderr, "%s (status %d) instead of %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(wanted));
		exit(1);
	}
	return event;
}

static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, int status)
{
	struct rdma_cm_event *event = next(channel, wanted);
	if (event->status != status)
		fprintf(stderr, "%s has status %d\n", rdma_event_str(wanted), event->status);
	CHECK(event->status == status);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel && id->pd);
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, enum rdma_port_space space, const char *ip)
{
	struct rdma_cm_id *id;
	struct sockaddr_in to = at(ip);
	CHECK(rdma_create_id(channel, &id, &port, space) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *) &to, 1000) == 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(id->verbs && id->port_num == 1 && id->context == &port);
	CHECK(rdma_get_dst_port(id) == htons(atoi(port)) && rdma_get_src_port(id) != 0);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(id->route.num_paths == 1 && id->route.path_rec->mtu >= IBV_MTU_256);
	return id;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	struct sockaddr_in here = at(host);
	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *) &here) == 0);
	CHECK(id->verbs && rdma_listen(id, 1024) == 0);
	return id;
}

// No listener: refused, reason 8 (invalid service identifier); for datagrams status 1 (not supported).
static void nobody(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, "127.0.0.1");
	make_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	pass(channel, RDMA_CM_EVENT_REJECTED, 8);
	CHECK(id->qp->state == IBV_QPS_ERR);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	id = resolved(channel, RDMA_PS_UDP, "127.0.0.1");
	make_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	pass(channel, RDMA_CM_EVENT_UNREACHABLE, 1);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

// An address of another host, where those are forbidden: there is no device for it.
static void elsewhere(void)
{
	setenv("FARCALL_TRANSPORT", "shared-memory", 1);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = at("203.0.113.7");
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *) &to, 1000) == 0);
	pass(channel, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *) &to) == -1 && errno == EADDRNOTAVAIL);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static int starts_with(const void *data, unsigned len, const char *text, unsigned room)
{
	const char *bytes = data;
	unsigned at;
	if (len != room || strncmp(bytes, text, strlen(text)))
		return 0;
	for (at = strlen(text); at < len; at++)
		if (bytes[at])
			return 0;
	return 1;
}

// A rejection by the program: reason 28, and its private data.
static void refused(void)
{
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(there, RDMA_PS_TCP), *id = resolved(here, RDMA_PS_TCP, "127.0.0.1");
	struct rdma_cm_event *event;
	make_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listening && event->id != listening);
	CHECK(rdma_reject(event->id, "no room", 7) == 0);
	CHECK(rdma_destroy_id(event->id) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(here, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28);
	CHECK(starts_with(event->param.conn.private_data, event->param.conn.private_data_len, "no room", 148));
	CHECK(rdma_ack_cm_event(event) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(rdma_destroy_id(listening) == 0);
}

// Private data of a request and of its reply, then a message, then both ends disconnect.
static void private_data(void)
{
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(there, RDMA_PS_TCP), *id = resolved(here, RDMA_PS_TCP, "127.0.0.1");
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 5, .responder_resources = 3,
		.initiator_depth = 2, .retry_count = 6, .rnr_retry_count = 5 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *peer;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_mr *mr, *out;
	struct ibv_wc wc;
	char sent[16] = "fifteen letters", got[16] = "";
	uint32_t asker;

	make_qp(id);
	asker = id->qp->qp_num;
	param.private_data_len = 57;
	CHECK(rdma_connect(id, &param) == -1 && errno == EINVAL);
	param.private_data_len = 5;
	CHECK(rdma_connect(id, &param) == 0);
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(starts_with(event->param.conn.private_data, event->param.conn.private_data_len, "hello", 56));
	CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.retry_count == 6 && event->param.conn.rnr_retry_count == 5);
	CHECK(event->param.conn.qp_num == asker);
	peer = event->id;
	CHECK(rdma_get_src_port(peer) == htons(atoi(port)) && rdma_get_dst_port(peer) == rdma_get_src_port(id));
	CHECK(rdma_ack_cm_event(event) == 0);
	make_qp(peer);
	mr = rdma_reg_msgs(peer, got, sizeof got);
	CHECK(mr && rdma_post_recv(peer, NULL, got, sizeof got, mr) == 0);
	param.private_data = "welcome";
	param.private_data_len = 7;
	param.responder_resources = 1;
	param.initiator_depth = 1;
	CHECK(rdma_accept(peer, &param) == 0);
	event = next(here, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(starts_with(event->param.conn.private_data, event->param.conn.private_data_len, "welcome", 196));
	CHECK(event->param.conn.qp_num == peer->qp->qp_num);
	CHECK(rdma_ack_cm_event(event) == 0);
	pass(there, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(id->qp->state == IBV_QPS_RTS && peer->qp->state == IBV_QPS_RTS);
	CHECK(ibv_query_qp(id->qp, &attr, ~0, &init) == 0);
	CHECK(attr.max_rd_atomic == 1 && attr.max_dest_rd_atomic == 1 && attr.rnr_retry == 5);
	out = rdma_reg_msgs(id, sent, sizeof sent);
	CHECK(out && rdma_post_send(id, NULL, sent, sizeof sent, out, 0) == 0);
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_dereg_mr(out) == 0);
	CHECK(rdma_get_recv_comp(peer, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(got, sent));
	CHECK(rdma_disconnect(id) == 0);
	pass(here, RDMA_CM_EVENT_DISCONNECTED, 0);
	pass(there, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(rdma_disconnect(peer) == 0);
	pass(here, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
	CHECK(rdma_disconnect(id) == 0 && rdma_disconnect(peer) == 0);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_qp(id);
	rdma_destroy_qp(peer);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(peer) == 0 && rdma_destroy_id(listening) == 0);
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

// Starts another process that connects, and waits for the end of the connection. It starts before this one has used
// the library.
static pid_t start_peer(int may_use[2])
{
	pid_t child;
	CHECK(pipe(may_use) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char byte;
		struct rdma_event_channel *channel;
		struct rdma_cm_id *id;
		CHECK(read(may_use[0], &byte, 1) == 1);
		channel = rdma_create_event_channel();
		id = resolved(channel, RDMA_PS_TCP, "127.0.0.1");
		make_qp(id);
		CHECK(rdma_connect(id, NULL) == 0);
		pass(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
		pause();
	}
	return child;
}

static struct rdma_cm_id *accepted(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	make_qp(id);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

// A peer that is killed while connected.
static void killed(void)
{
	int may_use[2];
	pid_t child = start_peer(may_use);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP), *id;
	CHECK(write(may_use[1], "", 1) == 1);
	id = accepted(channel);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(rdma_disconnect(id) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(listening) == 0);
}

// A peer that is killed before it gets a reply: it cannot be accepted any more.
static void killed_early(void)
{
	int may_use[2];
	pid_t child = start_peer(may_use);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP), *id;
	struct rdma_cm_event *event;
	CHECK(write(may_use[1], "", 1) == 1);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	pass(channel, RDMA_CM_EVENT_REJECTED, 28);
	make_qp(id);
	CHECK(rdma_accept(id, NULL) == -1 && errno == EINVAL);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(listening) == 0);
}

// Resolves a datagram service.
static void datagrams(void)
{
	struct rdma_event_channel *here = rdma_create_event_channel(), *there = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(there, RDMA_PS_UDP), *id = resolved(here, RDMA_PS_UDP, "127.0.0.1");
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 3 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *peer;
	make_qp(id);
	CHECK(id->qp->state == IBV_QPS_RTS);
	CHECK(rdma_connect(id, &param) == 0);
	event = next(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(starts_with(event->param.ud.private_data, event->param.ud.private_data_len, "who", 180));
	peer = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	make_qp(peer);
	param.private_data = "me";
	param.private_data_len = 2;
	CHECK(rdma_accept(peer, &param) == 0);
	event = next(here, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.ud.qp_num == peer->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(starts_with(event->param.ud.private_data, event->param.ud.private_data_len, "me", 136));
	CHECK(ibv_create_ah(id->pd, &event->param.ud.ah_attr) != NULL);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	(void) listening;
}

// A port belongs to one end at a time, unless both agree to share it; 0 means any free port.
static void ports(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP), *second, *datagrams;
	struct sockaddr_in here = at("127.0.0.1"), any = at("0.0.0.0"), other = at("127.0.0.2"), free_port = here;
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *) &here) == -1 && errno == EADDRINUSE);
	CHECK(rdma_bind_addr(second, (struct sockaddr *) &any) == -1 && errno == EADDRINUSE);
	CHECK(rdma_bind_addr(second, (struct sockaddr *) &other) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *) &other) == -1 && errno == EINVAL);
	CHECK(rdma_create_id(channel, &datagrams, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_bind_addr(datagrams, (struct sockaddr *) &here) == 0);
	CHECK(rdma_destroy_id(listening) == 0);
	listening = listener(channel, RDMA_PS_TCP);
	CHECK(rdma_destroy_id(second) == 0);
	CHECK(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0);
	free_port.sin_port = 0;
	CHECK(rdma_bind_addr(second, (struct sockaddr *) &free_port) == 0 && rdma_get_src_port(second) != 0);
	CHECK(((struct sockaddr_in *) rdma_get_local_addr(second))->sin_port == rdma_get_src_port(second));
}

// Synchronous calls, with the ends of two threads in one: a listener created by rdma_create_ep, moved to a channel.
static void sync_calls(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listening, *id, *peer;
	struct sockaddr_in away = at("203.0.113.7");
	// Other hosts are forbidden: there is no device for them.
	setenv("FARCALL_TRANSPORT", "shared-memory", 1);
	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
	CHECK(found->ai_src_addr && !found->ai_dst_addr && found->ai_qp_type == IBV_QPT_RC);
	CHECK(rdma_create_ep(&listening, found, NULL, &init) == 0);
	rdma_freeaddrinfo(found);
	CHECK(rdma_listen(listening, 1) == 0);
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0 && id->channel);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *) &away, 10) == -1 && errno == ENODEV);
	CHECK(rdma_destroy_id(id) == 0);
	hints.ai_flags = 0;
	CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &found) == 0);
	CHECK(!found->ai_src_addr && found->ai_dst_addr);
	CHECK(rdma_create_ep(&id, found, NULL, &init) == 0 && id->qp);
	rdma_freeaddrinfo(found);
	CHECK(rdma_migrate_id(id, channel) == 0 && id->channel == channel && !id->event);
	CHECK(rdma_connect(id, NULL) == 0);
	CHECK(rdma_get_request(listening, &peer) == 0 && peer->qp && peer->event);
	CHECK(rdma_migrate_id(peer, channel) == 0);
	CHECK(rdma_accept(peer, NULL) == 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	CHECK(rdma_migrate_id(id, NULL) == 0 && id->channel != channel);
	CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(peer);
	rdma_destroy_ep(listening);
}

// Calls in a wrong state, and unsupported functions.
static void errors(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	uint8_t tos = 32, timeout = 33;
	int on = 1, devices;
	struct ibv_context **list = rdma_get_devices(&devices);
	CHECK(list && devices == 1 && list[0] && !list[1]);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(rdma_create_id(channel, &id, NULL, 0x7777) == -1 && errno == EPROTONOSUPPORT);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	CHECK(rdma_accept(id, NULL) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_route(id, 1) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, NULL, 1) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof on) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &tos, sizeof tos) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &tos, 1) == -1 && errno == ENOSYS);
	CHECK(rdma_join_multicast(id, NULL, NULL) == -1 && errno == EOPNOTSUPP);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1) == -1 && errno == EINVAL);
	CHECK(rsocket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EOPNOTSUPP);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_free_devices(list);
	rdma_destroy_event_channel(channel);
}

// Serves one connection from another process, which disconnects.
static void serve(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listening = listener(channel, RDMA_PS_TCP), *id = accepted(channel);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(listening) == 0);
}

static struct rdma_cm_id *connected(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, host);
	make_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	pass(channel, RDMA_CM_EVENT_ESTABLISHED, 0);
	return id;
}

static void visit(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = connected(channel);
	CHECK(rdma_disconnect(id) == 0);
	pass(channel, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

// A client that exits normally without disconnecting.
static void end(void)
{
	connected(rdma_create_event_channel());
}

// A client that destroys its end without disconnecting, and continues to run.
static void destroy(void)
{
	struct rdma_cm_id *id = connected(rdma_create_event_channel());
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
	pause();
}

// A client that stays connected; the file indicates that.
static void stay(void)
{
	connected(rdma_create_event_channel());
	CHECK(open("connected", O_CREAT | O_WRONLY, 0600) >= 0);
	pause();
}

// Takes every request without replying.
static void hoard(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	listener(channel, RDMA_PS_TCP);
	for (;;) {
		struct rdma_cm_event *event;
		CHECK(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(rdma_ack_cm_event(event) == 0);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{ "nobody", nobody }, { "elsewhere", elsewhere }, { "refused", refused }, { "private_data", private_data },
		{ "killed", killed }, { "killed_early", killed_early }, { "datagrams", datagrams }, { "ports", ports },
		{ "sync", sync_calls }, { "errors", errors }, { "serve", serve }, { "visit", visit },
		{ "end", end }, { "destroy", destroy }, { "stay", stay }, { "hoard", hoard },
	};
	CHECK(argc == 3 || argc == 4);
	port = argv[2];
	if (argc == 4)
		host = argv[3];
	for (unsigned at = 0; at < sizeof cases / sizeof *cases; at++)
		if (!strcmp(cases[at].name, argv[1])) {
			cases[at].run();
			puts("ok");
			return 0;
		}
	fprintf(stderr, "no case %s\n", argv[1]);
	return 2;
}
