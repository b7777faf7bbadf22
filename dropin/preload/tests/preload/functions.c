/* All functions that write to, and read from, a paired connection: bytes keep their order.
 * For each method: one end writes "A" by write(), "B" by that method, "C" by write(); and so it reads. */
#include "peer.h"
#include <aio.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>

extern int plain_dprintf(int, const char *, ...) __asm__("dprintf");
extern int plain_vdprintf(int, const char *, va_list) __asm__("vdprintf");
extern int chk_vdprintf(int, int, const char *, va_list) __asm__("__vdprintf_chk");
extern ssize_t other_write(int, const void *, size_t) __asm__("__write");
extern ssize_t other_send(int, const void *, size_t, int) __asm__("__send");
extern ssize_t other_read(int, void *, size_t) __asm__("__read");

static void with_list(int fd, int is_checked, const char *format, ...) {
    va_list list;
    va_start(list, format);
    CHECK((is_checked ? chk_vdprintf(fd, 1, format, list) : plain_vdprintf(fd, format, list)) == 1);
    va_end(list);
}

static void aio_wait(struct aiocb *block) {
    const struct aiocb *list[1] = {block};
    while (aio_error(block) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    CHECK(aio_error(block) == 0 && aio_return(block) == 1);
}

/* Writes "B". */
static void put(int fd, const char *method) {
    struct iovec part = {"B", 1};
    struct aiocb block = {.aio_fildes = fd, .aio_buf = "B", .aio_nbytes = 1, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *list[1] = {&block};
    if (!strcmp(method, "dprintf"))
        CHECK(plain_dprintf(fd, "%c%.0f", 'B', 0.25) == 2);
    else if (!strcmp(method, "dprintf_chk"))
        CHECK(dprintf(fd, "%c%d%d%d%d%d%d%d%.0f", 'B', 1, 2, 3, 4, 5, 6, 7, 8.0) == 9);
    else if (!strcmp(method, "vdprintf"))
        with_list(fd, 0, "%c", 'B');
    else if (!strcmp(method, "vdprintf_chk"))
        with_list(fd, 1, "%c", 'B');
    else if (!strcmp(method, "fdopen")) {
        FILE *stream = fdopen(fd, "w");
        CHECK(stream != NULL && fputs("B", stream) >= 0 && fflush(stream) == 0);
    } else if (!strcmp(method, "stdout")) {
        int kept = dup(1);
        CHECK(dup2(fd, 1) == 1 && putchar('B') == 'B' && fflush(stdout) == 0 && dup2(kept, 1) == 1);
    } else if (!strcmp(method, "aio")) {
        CHECK(aio_write(&block) == 0);
        aio_wait(&block);
    } else if (!strcmp(method, "lio"))
        CHECK(lio_listio(LIO_WAIT, list, 1, NULL) == 0);
    else if (!strcmp(method, "vector2"))
        CHECK(pwritev2(fd, &part, 1, -1, 0) == 1);
    else if (!strcmp(method, "syscall"))
        CHECK(syscall(SYS_write, fd, "B", 1) == 1);
    else if (!strcmp(method, "syscall vector2"))
        CHECK(syscall(SYS_pwritev2, fd, &part, 1, -1L, -1L, 0) == 1);
    else if (!strcmp(method, "syscall many")) {
        struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
        CHECK(syscall(SYS_sendmmsg, fd, &message, 1, 0) == 1);
    } else if (!strcmp(method, "handle")) {
        /* As a foreign function interface does it. */
        void *libc = dlopen("libc.so.6", RTLD_NOW);
        ssize_t (*found)(int, const void *, size_t) = (void *)dlsym(libc, "write");
        CHECK(libc != NULL && found != NULL && found(fd, "B", 1) == 1);
    } else if (!strcmp(method, "other write"))
        CHECK(other_write(fd, "B", 1) == 1);
    else
        CHECK(!strcmp(method, "other send") && other_send(fd, "B", 1, 0) == 1);
}

/* Reads a byte. */
static int get(int fd, const char *method) {
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct aiocb block = {.aio_fildes = fd, .aio_buf = &byte, .aio_nbytes = 1};
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    if (!strcmp(method, "aio")) {
        CHECK(aio_read(&block) == 0);
        aio_wait(&block);
    } else if (!strcmp(method, "vector2"))
        CHECK(preadv2(fd, &part, 1, -1, 0) == 1);
    else if (!strcmp(method, "syscall"))
        CHECK(syscall(SYS_poll, &entry, 1, -1) == 1 && syscall(SYS_read, fd, &byte, 1) == 1);
    else if (!strcmp(method, "syscall vector2"))
        CHECK(syscall(SYS_preadv2, fd, &part, 1, -1L, -1L, 0) == 1);
    else if (!strcmp(method, "syscall many")) {
        struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
        CHECK(syscall(SYS_recvmmsg, fd, &message, 1, 0, NULL) == 1);
    } else if (!strcmp(method, "epoll")) {
        struct epoll_event event = {.events = EPOLLIN}, got;
        int ep = syscall(SYS_epoll_create1, 0);
        CHECK(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, fd, &event) == 0);
        CHECK(syscall(SYS_epoll_wait, ep, &got, 1, -1) == 1 && recv(fd, &byte, 1, 0) == 1 && close(ep) == 0);
    } else if (!strcmp(method, "select")) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fd, &set);
        CHECK(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, NULL, NULL) == 1 && recv(fd, &byte, 1, 0) == 1);
    } else
        CHECK(!strcmp(method, "other read") && other_read(fd, &byte, 1) == 1);
    return byte;
}

static const char *puts_methods[] = {"dprintf",     "dprintf_chk", "vdprintf", "vdprintf_chk",    "fdopen",
                                  "stdout",      "aio",         "lio",      "vector2",         "syscall",
                                  "other write", "other send",  "syscall vector2", "syscall many", "handle"};
static const char *get_methods[] = {"aio", "vector2", "syscall", "syscall vector2", "syscall many", "epoll", "select",
                                 "other read"};
enum { PUTS = sizeof puts_methods / sizeof *puts_methods, GETS = sizeof get_methods / sizeof *get_methods };

static void expect(int fd, const char *wanted, size_t len) {
    char got[64];
    CHECK(len < sizeof got && recv(fd, got, len, MSG_WAITALL) == (ssize_t)len);
    got[len] = 0;
    if (memcmp(got, wanted, len)) {
        fprintf(stderr, "%s instead of %s\n", got, wanted);
        exit(1);
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    int is_server = !strcmp(argv[1], "server");
    signal(SIGPIPE, SIG_IGN);
    alarm(500);
    open_port(is_server, argc > 2 ? argv[2] : "0");
    for (int i = 0; i < PUTS; i++) {
        const char *method = puts_methods[i], *middle = "B";
        int fd = meet(is_server);
        if (!strcmp(method, "dprintf"))
            middle = "B0";
        if (!strcmp(method, "dprintf_chk"))
            middle = "B12345678";
        if (is_server) {
            printf("%s\n", method);
            fflush(stdout);
            CHECK(write(fd, "A", 1) == 1);
            put(fd, method);
            CHECK(write(fd, "C", 1) == 1);
            /* A peer that reads nothing until all is written. */
            CHECK(write(fd, "D", 1) == 1);
        } else {
            usleep(20000);
            expect(fd, "A", 1);
            expect(fd, middle, strlen(middle));
            expect(fd, "CD", 2);
        }
        CHECK(close(fd) == 0);
    }
    for (int i = 0; i < GETS; i++) {
        int fd = meet(is_server);
        for (int round = 0; round < 3; round++) {
            if (is_server) {
                printf("%s\n", get_methods[i]);
                expect(fd, "A", 1);
                /* No byte is unread when a function begins that only TCP serves. */
                CHECK(write(fd, "x", 1) == 1);
                int byte = get(fd, get_methods[i]);
                CHECK(byte == 'B');
                expect(fd, "C", 1);
                CHECK(write(fd, "y", 1) == 1);
            } else {
                CHECK(write(fd, "A", 1) == 1);
                expect(fd, "x", 1);
                usleep(2000);
                CHECK(write(fd, "B", 1) == 1 && write(fd, "C", 1) == 1);
                expect(fd, "y", 1);
            }
        }
        CHECK(close(fd) == 0);
    }
    /* A stream that was opened before its connection was made. */
    int one = 1, fd = -1;
    if (is_server) {
        fd = accept(listener, NULL, NULL);
    } else {
        fd = socket(AF_INET, SOCK_STREAM, 0);
        FILE *stream = fdopen(fd, "w");
        CHECK(stream != NULL && connect(fd, (void *)&address, sizeof address) == 0);
        CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
        for (int round = 0; round < 20; round++) {
            CHECK(write(fd, "A", 1) == 1 && fputs("B", stream) >= 0 && fflush(stream) == 0 && write(fd, "C", 1) == 1);
            expect(fd, "x", 1);
        }
    }
    for (int round = 0; is_server && round < 20; round++) {
        expect(fd, "ABC", 3);
        CHECK(write(fd, "x", 1) == 1);
    }
    printf("done\n");
    return 0;
}
