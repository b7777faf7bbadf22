/* One end is killed, or stopped for a while, before its n-th store to shared memory; the other receives what it had sent,
 * or a part from the beginning, and then an end or a reset.
 * `stores server|client [PORT] NTH,SIGNAL` or `... lives`. */
#include "peer.h"
#include <dlfcn.h>

/* Short pieces until both ends are paired, then some that fill a ring. */
static const size_t pieces[] = {1, 1, 1, 9000, 64, 400000, 700, 3, 5000};
#define PIECES (sizeof pieces / sizeof *pieces)
static char bytes[400000];

static char byte_at(uint64_t position, int is_of_victim) {
    return (char)((position * 0x9e3779b97f4a7c15u >> 56) + is_of_victim);
}

/* Whether all was sent. */
static int send_all(int fd, uint64_t position, size_t len, int is_victim) {
    for (size_t i = 0; i < len; i++)
        bytes[i] = byte_at(position + i, is_victim);
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, bytes + done, len - done, MSG_NOSIGNAL);
        if (n < 0) {
            CHECK(errno == EPIPE || errno == ECONNRESET);
            return 0;
        }
        done += n;
    }
    return 1;
}

/* Whether all was received. */
static int receive_all(int fd, uint64_t position, size_t len, int is_victim) {
    for (size_t done = 0; done < len;) {
        ssize_t n = recv(fd, bytes, len - done, 0);
        if (n <= 0) {
            CHECK(n == 0 || errno == ECONNRESET);
            return 0;
        }
        for (ssize_t i = 0; i < n; i++)
            CHECK(bytes[i] == byte_at(position + done + i, !is_victim));
        done += n;
    }
    return 1;
}

/* Whether it went to its end. */
static int exchange(int fd, int is_victim) {
    uint64_t position = 0;
    for (size_t at = 0; at < PIECES; at++) {
        if (is_victim && !send_all(fd, position, pieces[at], is_victim))
            return 0;
        if (!receive_all(fd, position, pieces[at], is_victim))
            return 0;
        if (!is_victim && !send_all(fd, position, pieces[at], is_victim))
            return 0;
        /* Longer than a delayed acknowledgement. */
        if (at == 1)
            usleep(60000);
        position += pieces[at];
    }
    shutdown(fd, SHUT_WR);
    ssize_t n = recv(fd, bytes, 1, 0);
    CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
    return n == 0;
}

/* Wakes a child that was stopped; its status as one of ours: 9 for a killed one. */
static int keep(pid_t child) {
    int status;
    while (waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status)) {
        usleep(5000);
        kill(child, SIGCONT);
    }
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0, signal_number = 0;
    unsigned long long nth = 0;
    int is_victim = sscanf(argv[argc - 1], "%llu,%d", &nth, &signal_number) == 2;
    alarm(100);
    if (is_victim) {
        pid_t child = fork();
        if (child > 0)
            return keep(child);
        alarm(90);
    }
    open_port(is_server, argv[2]);
    if (is_victim) {
        _Bool (*arm)(uint64_t, int) = (_Bool (*)(uint64_t, int))dlsym(RTLD_DEFAULT, "farcall_preload_arm_store_hook");
        CHECK(arm != NULL && arm(nth, signal_number));
    }
    int fd = connection(is_server);
    int is_whole = exchange(fd, is_victim);
    puts(is_whole ? "whole" : "broken");
    return 0;
}
