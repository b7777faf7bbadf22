/* A reader that relies on TCP_INQ, as gRPC does: when no bytes are left, it does not try again before the next edge. A
 * number too low would hang it: before the ends meet, after it, and at the end. */
#include "peer.h"

enum { CONNECTIONS = 50, ROUNDS = 20, LARGEST = 400000, TCP_CONTROL_INQ = 36 };

static char byte_at(size_t at, int is_server) {
    return (char)(at * 31 + at / 251 + is_server);
}

/* Receives once; returns how many bytes are left as reported: 1 if that is not reported. -1 at the end, -2: there was nothing. */
static int receive(int fd, size_t *got, int is_server) {
    char bytes[8000], control[CMSG_SPACE(sizeof(int))];
    struct iovec into = {bytes, sizeof bytes};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT);
    if (n < 0) {
        CHECK(errno == EAGAIN);
        return -2;
    }
    if (n == 0)
        return -1;
    for (ssize_t i = 0; i < n; i++)
        CHECK(bytes[i] == byte_at((*got)++, !is_server));
    int left = 1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_TCP && header->cmsg_type == TCP_CONTROL_INQ)
            memcpy(&left, CMSG_DATA(header), sizeof left);
    return left;
}

/* Receives so many bytes, or the end. */
static void receive_all(int fd, int ep, size_t bytes, int *left, int is_server) {
    struct epoll_event event;
    for (size_t got = 0;;) {
        while (*left > 0 && (got < bytes || bytes == 0))
            *left = receive(fd, &got, is_server);
        if (got == bytes && (bytes > 0 || *left == -1))
            return;
        CHECK(epoll_wait(ep, &event, 1, -1) == 1);
        *left = 1;
    }
}

static void exchange(int fd, int is_server) {
    static char sent[LARGEST];
    int one = 1, ep = epoll_create1(EPOLL_CLOEXEC), left = 0;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(setsockopt(fd, SOL_TCP, TCP_INQ, &one, sizeof one) == 0);
    for (size_t at = 0; at < LARGEST; at++)
        sent[at] = byte_at(at, is_server);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        /* The first ones are still in flight by TCP when the ends pair. */
        size_t bytes = round < 2 ? LARGEST : 1 + round / 2 * 7919;
        if (round % 2 == is_server)
            CHECK(send(fd, sent, bytes, 0) == (ssize_t)bytes);
        else
            receive_all(fd, ep, bytes, &left, is_server);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    receive_all(fd, ep, 0, &left, is_server);
    CHECK(close(ep) == 0 && close(fd) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    int is_server = strcmp(argv[1], "server") == 0;
    signal(SIGPIPE, SIG_IGN);
    alarm(120);
    open_port(is_server, argc > 2 ? argv[2] : "0");
    for (int i = 0; i < CONNECTIONS; i++)
        exchange(connection(is_server), is_server);
    puts("done");
    return 0;
}
