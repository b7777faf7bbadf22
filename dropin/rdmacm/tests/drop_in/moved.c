// Location of memory that a program registers after the connection manager's thread has started: `program
// alone|threads`. Prints "ok" at the end, or the check that failed.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
			exit(1); \
		} \
	} while (0)

enum { LEN = 64 * 1024, ROUNDS = 50 };

// Returns whether peers can map the page at an address.
static int is_moved(const void *at)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	int found = 0;
	CHECK(maps);
	while (!found && fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2);
		found = from <= (unsigned long) at && (unsigned long) at < to && strstr(line, "memfd:farcall-registered");
	}
	fclose(maps);
	return found;
}

// Returns whether the connection manager's thread runs, which sets its name then. Before that, the system's library
// prepares the thread by functions that libfabric patches.
static int thread_has_begun(void)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *task;
	int found = 0;
	CHECK(tasks);
	while ((task = readdir(tasks))) {
		char path[300], name[32] = "";
		FILE *file;
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
		file = fopen(path, "r");
		if (file && fgets(name, sizeof name, file))
			found |= strcmp(name, "farcall-rdmacm\n") == 0;
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return found;
}

static void pass(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == wanted);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static void *rest(void *unused)
{
	(void) unused;
	pause();
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 && strcmp(argv[1], "threads") == 0;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	CHECK(channel && inet_pton(AF_INET, "127.0.0.1", &to.sin_addr) == 1);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(thread_has_begun());
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *) &to, 1000) == 0);
	pass(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 1000) == 0);
	pass(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	pd = ibv_alloc_pd(id->verbs);
	CHECK(pd && rdma_create_qp(id, pd, &init) == 0);
	// Without a listener: the connection manager's thread retries for a while, and then reports a rejection.
	CHECK(rdma_connect(id, NULL) == 0);
	if (threads) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, rest, NULL) == 0);
	}
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_mr *mr;
		char *buffer = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(buffer != MAP_FAILED);
		memset(buffer, round, LEN);
		mr = ibv_reg_mr(pd, buffer, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		CHECK(mr);
		CHECK(is_moved(buffer) == !threads);
		CHECK(ibv_dereg_mr(mr) == 0);
		CHECK(!is_moved(buffer) && buffer[0] == round && buffer[LEN - 1] == round);
		CHECK(munmap(buffer, LEN) == 0);
	}
	pass(channel, RDMA_CM_EVENT_REJECTED);
	puts("ok");
	return 0;
}
