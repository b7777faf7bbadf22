/* A server that allows itself few system calls while its connections are in use: `seccomp server METHOD`,
 * `seccomp client PORT METHOD`. Bytes wait unread when the filter is installed. */
#include "peer.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Reading, writing, two methods of waiting, and the end. */
static void restrict_calls(int by_number) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), ALLOW(SYS_read),  ALLOW(SYS_write),      ALLOW(SYS_epoll_wait), ALLOW(SYS_poll),
        ALLOW(SYS_exit_group),                 ALLOW(SYS_close), ALLOW(SYS_newfstatat), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_number)
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    else
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = !strcmp(argv[1], "server"), ep = epoll_create1(EPOLL_CLOEXEC);
    const char *method = argv[argc - 1];
    char bytes[256];
    signal(SIGPIPE, SIG_IGN);
    alarm(500);
    open_port(is_server, is_server ? "0" : argv[2]);
    int fd = meet(is_server), total = 0;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 4711}, got;
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
    if (!is_server) {
        /* More than the server reads at once. */
        for (int i = 0; i < 20; i++)
            CHECK(write(fd, "0123456789", 10) == 10);
        CHECK(recv(fd, bytes, 1, 0) == 1);
        for (int i = 0; i < 20; i++)
            CHECK(write(fd, "0123456789", 10) == 10);
        for (int i = 0; i < 390; i += 39)
            CHECK(recv(fd, bytes, 39, MSG_WAITALL) == 39);
        CHECK(close(fd) == 0);
        printf("done\n");
        return 0;
    }
    CHECK(recv(fd, bytes, 10, MSG_WAITALL) == 10);
    /* The rest of the first half has arrived. */
    for (int unread = 0; unread < 190;)
        CHECK(ioctl(fd, FIONREAD, &unread) == 0);
    restrict_calls(!strcmp(method, "number"));
    CHECK(write(fd, "x", 1) == 1);
    while (total < 390) {
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        if (total % 2 == 0)
            CHECK(epoll_wait(ep, &got, 1, -1) == 1 && got.data.u64 == 4711);
        else
            CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLIN);
        ssize_t n = read(fd, bytes, 7);
        CHECK(n > 0);
        for (int i = 0; i < n; i++)
            CHECK(bytes[i] == '0' + (total + i) % 10);
        CHECK(write(fd, bytes, n) == n);
        total += n;
    }
    CHECK(read(fd, bytes, 1) == 0 && close(fd) == 0);
    return 0;
}
