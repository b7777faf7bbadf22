/* Edge-triggered echo over many connections, 100,000 rounds: a lost edge would hang it.
 * `edges server MODE`, `edges client PORT MODE`. With `once` in the mode the server's two threads share one epoll object,
 * with EPOLLONESHOT; with `late` the ends meet while they are in their epoll objects. */
#include "peer.h"
#include <pthread.h>

enum { CONNECTIONS = 8, ROUNDS = 100000 };
static int fds[CONNECTIONS];

static int is_kind(const char *name, const char *kind) {
    return strstr(name, kind) != NULL;
}

static void echo(int fd, int *open_fds) {
    char bytes[4096];
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0) {
            CHECK(errno == EAGAIN);
            return;
        }
        if (n == 0) {
            __atomic_fetch_sub(open_fds, 1, __ATOMIC_SEQ_CST);
            CHECK(close(fd) == 0);
            return;
        }
        CHECK(send(fd, bytes, n, 0) == n);
    }
}

static int ep, open_fds = CONNECTIONS;

static void *serve(void *once) {
    struct epoll_event event, got[4];
    while (__atomic_load_n(&open_fds, __ATOMIC_SEQ_CST) > 0) {
        int n = epoll_wait(ep, got, 4, 100);
        CHECK(n >= 0);
        for (int i = 0; i < n; i++) {
            int fd = got[i].data.fd, before = __atomic_load_n(&open_fds, __ATOMIC_SEQ_CST);
            echo(fd, &open_fds);
            event.events = EPOLLIN | EPOLLRDHUP | EPOLLET | EPOLLONESHOT;
            event.data.fd = fd;
            if (once && before == CONNECTIONS)
                epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event);
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    int is_server = is_kind(argv[1], "server"), done = 0;
    int late = is_kind(argv[argc - 1], "late");
    int once = is_kind(argv[argc - 1], "once"), rounds = once ? ROUNDS / 10 : ROUNDS;
    signal(SIGPIPE, SIG_IGN);
    alarm(500);
    open_port(is_server, argc > 2 ? argv[2] : "0");
    ep = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = fds[i] = late ? connection(is_server) : meet(is_server)};
        if (once && is_server)
            event.events |= EPOLLONESHOT;
        CHECK(fcntl(fds[i], F_SETFL, O_NONBLOCK) == 0);
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    if (is_server) {
        pthread_t other;
        if (once)
            CHECK(pthread_create(&other, NULL, serve, &once) == 0);
        serve(once ? &once : NULL);
        if (once)
            CHECK(pthread_join(other, NULL) == 0);
        return 0;
    }
    uint64_t state = 4711;
    while (done < rounds) {
        char bytes[1024] = "", got_bytes[1024];
        size_t asked[1024] = {0}, waiting = 0;
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        for (int i = 0; i < CONNECTIONS; i++)
            if (state >> i & 1 || i == done % CONNECTIONS) {
                size_t len = 1 + (state >> 8) % (sizeof bytes - 1);
                CHECK(send(fds[i], bytes, len, 0) == (ssize_t)len);
                asked[fds[i]] = len, waiting++, done++;
            }
        while (waiting > 0) {
            struct epoll_event got[3];
            int n = epoll_wait(ep, got, 3, -1);
            CHECK(n > 0);
            for (int i = 0; i < n; i++)
                for (ssize_t len; (len = recv(got[i].data.fd, got_bytes, sizeof got_bytes, 0)) > 0;) {
                    CHECK((size_t)len <= asked[got[i].data.fd]);
                    waiting -= (asked[got[i].data.fd] -= len) == 0;
                }
        }
    }
    for (int i = 0; i < CONNECTIONS; i++)
        CHECK(close(fds[i]) == 0);
    printf("%d rounds or more\n", rounds);
    return 0;
}
