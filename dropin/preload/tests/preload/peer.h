/* Two processes and TCP connections between them: `PROGRAM server` prints its port, `PROGRAM client PORT` connects. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                        \
    do {                                                                                        \
        if (!(condition)) {                                                                     \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno);   \
            exit(1);                                                                            \
        }                                                                                       \
    } while (0)

static int listener = -1;
static struct sockaddr_in address = {.sin_family = AF_INET};

__attribute__((unused)) static void open_port(int is_server, const char *port) {
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = is_server ? 0 : htons(atoi(port));
    if (!is_server)
        return;
    socklen_t len = sizeof address;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 64) == 0);
    CHECK(getsockname(listener, (void *)&address, &len) == 0);
    fprintf(stderr, "port %d\n", ntohs(address.sin_port));
    fflush(stderr);
}

/* A new connection. */
static int connection(int is_server) {
    int fd, one = 1;
    if (is_server) {
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    } else {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(connect(fd, (void *)&address, sizeof address) == 0);
    }
    CHECK(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    return fd;
}

/* A connection on which both ends have met, if they can: enough requests went to and fro. */
__attribute__((unused)) static int meet(int is_server) {
    int fd = connection(is_server);
    char byte = 'x';
    for (int round = 0; round < 40; round++) {
        if (!is_server)
            CHECK(send(fd, &byte, 1, 0) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1);
        if (is_server)
            CHECK(send(fd, &byte, 1, 0) == 1);
    }
    return fd;
}
