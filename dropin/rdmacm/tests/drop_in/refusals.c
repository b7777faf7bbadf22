// Makes every function fail that can fail; the trace contains the reasons.
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			exit(1); \
		} \
	} while (0)

#define FAILS(call, number) \
	do { \
		errno = 0; \
		CHECK((call) == -1 && errno == (number)); \
	} while (0)

static struct rdma_cm_id *make_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	return id;
}

// No call that needs a descriptor gets one: in a process of its own, because the limit cannot be raised again. The
// device is not open yet; the library and the trace are.
static void without_descriptors(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices);
	ibv_free_device_list(devices);
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = { 0, 0 };
		int count;
		CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
		errno = 0;
		CHECK(!rdma_create_event_channel() && errno == EMFILE);
		errno = 0;
		CHECK(!rdma_get_devices(&count) && errno == EMFILE);
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void addresses(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = make_id(channel);
	struct sockaddr_in elsewhere = { .sin_family = AF_INET }, here = { .sin_family = AF_INET };
	struct sockaddr_un other = { .sun_family = AF_UNIX };
	CHECK(inet_pton(AF_INET, "192.0.2.1", &elsewhere.sin_addr) == 1);
	CHECK(inet_pton(AF_INET, "127.0.0.1", &here.sin_addr) == 1);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&other), EAFNOSUPPORT);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&elsewhere), EADDRNOTAVAIL);
	FAILS(rdma_resolve_addr(id, NULL, NULL, 1000), EINVAL);
	FAILS(rdma_resolve_route(id, 1000), EINVAL);

	uint8_t long_timeout = 32;
	int flag = 1;
	FAILS(rdma_set_option(id, 9, 0, &flag, sizeof flag), ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &flag, sizeof flag), ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &flag, 3), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &long_timeout, 1), EINVAL);
	FAILS(rdma_set_local_ece(id, NULL), EINVAL);
	FAILS(rdma_get_remote_ece(id, NULL), EINVAL);

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&here) == 0);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &flag, sizeof flag), EINVAL);
	struct rdma_cm_id *second = make_id(channel);
	here.sin_port = rdma_get_src_port(id);
	FAILS(rdma_bind_addr(second, (struct sockaddr *)&here), EADDRINUSE);
	CHECK(rdma_listen(id, 1) == 0);
	FAILS(rdma_listen(id, 1), EINVAL);
	struct rdma_cm_id *request;
	FAILS(rdma_get_request(id, &request), EINVAL);
	CHECK(rdma_destroy_id(second) == 0 && rdma_destroy_id(id) == 0);
}

static void connections(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = make_id(channel), *sync = make_id(NULL), *none;
	struct rdma_conn_param param = { .responder_resources = 1 };
	FAILS(rdma_create_id(channel, &none, NULL, 7), EPROTONOSUPPORT);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_reject_ece(id, NULL, 0), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_QP_FATAL), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	FAILS(rdma_migrate_id(sync, NULL), EINVAL);

	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr_ex init_ex = { .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex srq_ex = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	FAILS(rdma_create_qp_ex(id, &init_ex), EINVAL);
	FAILS(rdma_create_srq(id, NULL, &srq), EINVAL);
	FAILS(rdma_create_srq_ex(id, &srq_ex), EINVAL);
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	attr.qp_state = 77;
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	CHECK(rdma_destroy_id(sync) == 0 && rdma_destroy_id(id) == 0);
}

static void names(void)
{
	struct rdma_addrinfo *found, odd = { .ai_port_space = 7 }, numeric = { .ai_flags = RAI_NUMERICHOST };
	struct rdma_cm_id *id;
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
	CHECK(rdma_getaddrinfo("no.address", NULL, &numeric, &found) != 0);
	FAILS(rdma_create_ep(&id, &odd, NULL, NULL), EPROTONOSUPPORT);
	FAILS(rdma_join_multicast(NULL, NULL, NULL), EOPNOTSUPP);
	FAILS(rdma_leave_multicast(NULL, NULL), EOPNOTSUPP);
	FAILS(rdma_join_multicast_ex(NULL, NULL, NULL), EOPNOTSUPP);
	FAILS(rsocket(AF_INET, SOCK_STREAM, 0), EOPNOTSUPP);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	without_descriptors();
	addresses(channel);
	connections(channel);
	names();
	rdma_destroy_event_channel(channel);
	puts("done");
	return 0;
}
