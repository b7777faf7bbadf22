/* A program that makes system calls itself. `direct server METHOD`, `direct client PORT METHOD`; the server makes them.
 * With HARMLESS it makes none that concerns a socket; with PLUGIN they are in an object that it loads, which is made with
 * PLUGIN_ITSELF. */
#include "peer.h"
#include <dlfcn.h>

__attribute__((unused)) static long number_1(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

#ifdef PLUGIN_ITSELF
long plugin_write(int fd, const void *from, long len) {
    return number_1(1, fd, (long)from, len, 0);
}
long plugin_read(int fd, void *into, long len) {
    return number_1(0, fd, (long)into, len, 0);
}
#else
#ifdef PLUGIN
static long (*plugin_write)(int, const void *, long);
static long (*plugin_read)(int, void *, long);
static void load(const char *file) {
    void *plugin = dlopen(file, RTLD_NOW);
    if (!plugin)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(plugin && (plugin_write = (void *)dlsym(plugin, "plugin_write")) && (plugin_read = (void *)dlsym(plugin, "plugin_read")));
}
static long direct_write(int fd, const void *from, long len) {
    return plugin_write(fd, from, len);
}
static long direct_read(int fd, void *into, long len) {
    return plugin_read(fd, into, len);
}
static void direct_wait(int fd) {
    (void)fd;
}
#elif defined(HARMLESS)
static void load(const char *file) {
    (void)file;
    long result;
    __asm__ volatile("movl $186, %%eax; syscall" : "=a"(result) : : "rcx", "r11", "memory");
    CHECK(result > 0);
}
static long direct_write(int fd, const void *from, long len) {
    return write(fd, from, len);
}
static long direct_read(int fd, void *into, long len) {
    return read(fd, into, len);
}
static void direct_wait(int fd) {
    (void)fd;
}
#else
static void load(const char *file) {
    (void)file;
}
static long direct_write(int fd, const void *from, long len) {
    return number_1(1, fd, (long)from, len, 0);
}
static long direct_read(int fd, void *into, long len) {
    return number_1(0, fd, (long)into, len, 0);
}
/* epoll_wait. */
static void direct_wait(int fd) {
    struct epoll_event event = {.events = EPOLLIN}, got;
    int ep = epoll_create1(0);
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(number_1(232, ep, (long)&got, 1, -1) == 1 && close(ep) == 0);
}
#endif

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = !strcmp(argv[1], "server");
    const char *method = argv[argc - 1];
    char got[4] = "";
    signal(SIGPIPE, SIG_IGN);
    alarm(500);
    open_port(is_server, is_server ? "0" : argv[2]);
    int fd = meet(is_server);
    const char *plugin = getenv("PLUGIN_FILE");
    if (is_server)
        load(plugin);
    if (!strcmp(method, "unannounced")) {
        if (is_server) {
            CHECK(write(fd, "A", 1) == 1 && direct_write(fd, "B", 1) == 1);
            ssize_t n = read(fd, got, 1);
            CHECK(n <= 0);
        } else {
            CHECK(recv(fd, got, 1, 0) == 1 && got[0] == 'A');
            ssize_t n = recv(fd, got, 1, 0);
            CHECK(n == -1 && errno == ECONNRESET);
            n = recv(fd, got, 1, 0);
            CHECK(n <= 0);
            n = send(fd, got, 1, 0);
            CHECK(n == -1);
        }
        printf("done\n");
        return 0;
    }
    if (!strcmp(method, "closed")) {
        /* The client reads after the server has closed. */
        int control = connection(is_server), len = 0;
        if (is_server) {
            CHECK(write(fd, "A", 1) == 1 && direct_write(fd, "B", 1) == 1 && write(fd, "C", 1) == 1 && close(fd) == 0);
            CHECK(write(control, "w", 1) == 1);
            ssize_t n = read(control, got, 1);
            CHECK(n == 1);
        } else {
            char bytes[64];
            ssize_t n = recv(control, got, 1, 0);
            CHECK(n == 1);
            while ((n = recv(fd, bytes + len, sizeof bytes - len, 0)) > 0)
                len += n;
            CHECK(n == -1 && errno == ECONNRESET && memchr(bytes, 'B', len) == NULL);
            CHECK(write(control, "w", 1) == 1);
        }
        printf("done\n");
        return 0;
    }
    for (int round = 0; round < 50; round++) {
        if (is_server) {
            CHECK(write(fd, "A", 1) == 1 && direct_write(fd, "B", 1) == 1 && write(fd, "C", 1) == 1);
            direct_wait(fd);
            CHECK(recv(fd, got, 1, 0) == 1 && got[0] == 'x');
            CHECK(direct_read(fd, got, 1) == 1 && got[0] == 'y');
        } else {
            CHECK(recv(fd, got, 3, MSG_WAITALL) == 3);
            if (memcmp(got, "ABC", 3)) {
                fprintf(stderr, "%s instead of ABC\n", got);
                return 1;
            }
            CHECK(send(fd, "xy", 2, 0) == 2);
        }
    }
    CHECK(close(fd) == 0);
    printf("done\n");
    return 0;
}
#endif
