/* Connections that move, and then all the descriptors that a process may have besides: `scarce server COUNT`, `scarce client
 * PORT COUNT`. */
#include "peer.h"
#include <sys/resource.h>

enum { DESCRIPTORS = 256 };
static int fds[DESCRIPTORS], connections, is_server;

static void exchange(int fd, int rounds) {
    char byte = 'x';
    for (int round = 0; round < rounds; round++) {
        if (!is_server)
            CHECK(send(fd, &byte, 1, 0) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1);
        if (is_server)
            CHECK(send(fd, &byte, 1, 0) == 1);
    }
}

/* Opens one more, in one of several ways. */
static int one_more(int way) {
    FILE *stream;
    switch (way) {
    case 0: return open("/dev/null", O_RDONLY);
    case 1: return socket(AF_INET, SOCK_STREAM, 0);
    case 2: return dup(0);
    case 3: return fcntl(0, F_DUPFD_CLOEXEC, 0);
    case 4: return epoll_create1(0);
    default: return (stream = fopen("/dev/null", "r")) ? fileno(stream) : -1;
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    is_server = strcmp(argv[1], "server") == 0;
    connections = atoi(argv[argc - 1]);
    struct rlimit limit = {DESCRIPTORS, DESCRIPTORS};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    alarm(200);
    open_port(is_server, argv[2]);
    int others = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        others += fcntl(fd, F_GETFD) >= 0;
    for (int at = 0; at < connections; at++) {
        fds[at] = connection(is_server);
        exchange(fds[at], 40);
    }
    for (int at = 0; at < connections; at++)
        exchange(fds[at], 40);
    int all = 0;
    for (int fd = 0; fd < DESCRIPTORS; fd++)
        all += fcntl(fd, F_GETFD) >= 0;
    /* One of the program and one of the library for each connection; a few of the process. */
    printf("%s\n", all <= others + 2 * connections + 4 ? "few" : "many");
    exchange(fds[0], 1);
    int opened = 0;
    while (one_more(opened % 6) >= 0)
        opened++;
    printf("%d more, then %s\n", opened, strerrorname_np(errno));
    for (int at = 0; at < connections; at++)
        exchange(fds[at], 40);
    printf("done\n");
    return 0;
}
