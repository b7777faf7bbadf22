/* Random bytes both ways at once, by random calls, checked one by one:
 * `traffic server SEED` and `traffic client PORT SEED`; the seed also says what happens in the middle. */
#include "peer.h"
#include <pthread.h>

static uint64_t state;
static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* Byte `at` of a direction. */
static unsigned char byte_at(uint64_t at, int direction) {
    uint64_t x = at * 0x9E3779B97F4A7C15u + direction;
    return (x ^ x >> 29) >> 11;
}

static char out[300000], in[300000];
static uint64_t sent, received, total;
static int is_server, fd;

static void fill(size_t len) {
    for (size_t i = 0; i < len; i++)
        out[i] = byte_at(sent + i, is_server);
}
static void verify(const char *bytes, size_t len, uint64_t from) {
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)bytes[i] != byte_at(from + i, !is_server)) {
            fprintf(stderr, "wrong byte %lu\n", (unsigned long)(from + i));
            exit(1);
        }
}

static size_t length(void) {
    uint64_t kind = next() % 10;
    return 1 + next() % (kind < 5 ? 100 : kind < 9 ? 20000 : sizeof out - 1);
}

/* Returns 0 if there was no room. */
static int send_some(void) {
    size_t len = length();
    if (len > total - sent)
        len = total - sent;
    fill(len);
    size_t half = len / 2;
    struct iovec parts[2] = {{out, half}, {out + half, len - half}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t n;
    switch (next() % 4) {
    case 0: n = write(fd, out, len); break;
    case 1: n = send(fd, out, len, MSG_NOSIGNAL); break;
    case 2: n = writev(fd, parts, 2); break;
    default: n = sendmsg(fd, &message, MSG_NOSIGNAL); break;
    }
    if (n < 0) {
        CHECK(errno == EAGAIN);
        return 0;
    }
    sent += n;
    if (sent == total)
        CHECK(shutdown(fd, SHUT_WR) == 0);
    return 1;
}

/* Returns 0 if there was nothing, -1 at the end. */
static int receive_some(void) {
    size_t len = length();
    struct iovec parts[2] = {{in, len / 2}, {in + len / 2, len - len / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t n;
    if (next() % 8 == 0) {
        n = recv(fd, in, len, MSG_PEEK);
        if (n > 0)
            verify(in, n, received);
        return 1;
    }
    switch (next() % 4) {
    case 0: n = read(fd, in, len); break;
    case 1: n = recv(fd, in, len, 0); break;
    case 2: n = readv(fd, parts, 2); break;
    default: n = recvmsg(fd, &message, 0); break;
    }
    if (n < 0) {
        CHECK(errno == EAGAIN);
        return 0;
    }
    if (n == 0)
        return -1;
    verify(in, n, received);
    received += n;
    return 1;
}

static void *receive_all(void *unused) {
    while (receive_some() != -1) {
    }
    return unused;
}

/* Two threads with calls that block. */
static void by_threads(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, receive_all, NULL) == 0);
    while (sent < total)
        send_some();
    CHECK(pthread_join(thread, NULL) == 0);
}

/* One thread and readiness, reported by `wait`, which sleeps only if it may. */
static void by_events(int (*wait)(int events, int may_sleep)) {
    int readable = 0, writable = 0, has_ended = 0;
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
    while (!has_ended || sent < total) {
        int wanted = (has_ended ? 0 : EPOLLIN) | (sent < total ? EPOLLOUT : 0);
        int got = wait(wanted, !(readable && !has_ended) && !(writable && sent < total));
        readable |= !!(got & (EPOLLIN | EPOLLHUP | EPOLLRDHUP)), writable |= !!(got & EPOLLOUT);
        for (int turns = next() % 8; readable && !has_ended && turns >= 0; turns--) {
            int result = receive_some();
            has_ended = result == -1, readable = result == 1;
        }
        for (int turns = next() % 8; writable && sent < total && turns >= 0; turns--)
            writable = send_some();
    }
}

static int by_poll(int events, int may_sleep) {
    struct pollfd entry = {.fd = fd, .events = events};
    CHECK(poll(&entry, 1, may_sleep ? -1 : 0) >= 0);
    return entry.revents;
}

static int by_select(int events, int may_sleep) {
    fd_set reads, writes;
    struct timeval none = {0, 0};
    FD_ZERO(&reads);
    FD_ZERO(&writes);
    if (events & EPOLLIN)
        FD_SET(fd, &reads);
    if (events & EPOLLOUT)
        FD_SET(fd, &writes);
    CHECK(select(fd + 1, &reads, &writes, NULL, may_sleep ? NULL : &none) >= 0);
    return (FD_ISSET(fd, &reads) ? EPOLLIN : 0) | (FD_ISSET(fd, &writes) ? EPOLLOUT : 0);
}

static int ep = -1, ep_events = -1, ep_mode;

/* Level-triggered, edge-triggered (0, EPOLLET) or once (EPOLLONESHOT). */
static int by_epoll(int events, int may_sleep) {
    struct epoll_event event = {.data.u64 = 4711}, got;
    if (ep < 0) {
        ep = epoll_create1(EPOLL_CLOEXEC);
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    /* An edge-triggered one is set once, as programs do it. */
    int wish = ep_mode == (int)EPOLLET ? (int)(EPOLLIN | EPOLLOUT | EPOLLET) : events | ep_mode;
    if (wish != ep_events || ep_mode == EPOLLONESHOT) {
        event.events = ep_events = wish;
        /* Some programs take it out and put it in again. */
        int changes = next() % 2;
        if (!changes)
            CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL) == 0);
        CHECK(epoll_ctl(ep, changes ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) == 0);
    }
    int n = epoll_wait(ep, &got, 1, may_sleep ? -1 : 0);
    CHECK(n >= 0 && (n == 0 || got.data.u64 == 4711));
    return n ? (int)got.events : 0;
}

static void run(int mode) {
    sent = received = 0, ep = ep_events = -1;
    switch (mode) {
    case 0: by_threads(); break;
    case 1: by_events(by_poll); break;
    case 2: by_events(by_select); break;
    default:
        ep_mode = mode == 3 ? 0 : mode == 4 ? (int)EPOLLET : EPOLLONESHOT;
        by_events(by_epoll);
        close(ep);
    }
    if (received != total) {
        fprintf(stderr, "received %lu of %lu bytes\n", (unsigned long)received, (unsigned long)total);
        exit(1);
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    is_server = strcmp(argv[1], "server") == 0;
    uint64_t seed = strtoull(argv[argc - 1], NULL, 10);
    signal(SIGPIPE, SIG_IGN);
    alarm(500);
    open_port(is_server, argv[2]);
    for (int round = 0; round < 12; round++) {
        state = seed * 1000003 + round * 2 + is_server + 1;
        next();
        total = 3000000 + seed % 1000;
        fd = meet(is_server);
        /* Both ends wait in all ways, and not in the same. */
        int mode = (round + (is_server ? 0 : seed + round / 6)) % 6;
        /* In the middle a child takes over: it has the connection, too. */
        int forks = round >= 6 && round < 10 && round % 2 == is_server;
        pid_t pid = forks ? fork() : 0;
        CHECK(pid >= 0);
        if (pid == 0) {
            run(mode);
            if (forks)
                _exit(0);
        } else {
            int status;
            close(fd);
            CHECK(waitpid(pid, &status, 0) == pid && status == 0);
            fd = open("/dev/null", O_RDONLY);
        }
        CHECK(close(fd) == 0);
        fprintf(stdout, "round %d ok\n", round);
        fflush(stdout);
    }
    return 0;
}
