/* Connections that move, and then all the descriptors that a process may have besides: `scarce server COUNT[,METHOD]`, `scarce
 * client PORT COUNT[,METHOD]`. Without a method the first few are taken in turn. */
#include "peer.h"
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>

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

/* Receives a descriptor in a message. */
static int receive_one(void) {
    static int pair[2];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    if (pair[1] == 0)
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    memcpy(CMSG_DATA(&control.header), &pair[0], sizeof(int));
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    message.msg_controllen = sizeof control;
    CHECK(recvmsg(pair[1], &message, 0) == 1);
    errno = EMFILE;
    return message.msg_controllen < CMSG_LEN(sizeof(int)) ? -1 : 0;
}

/* Opens one more, in one of several methods. */
static int one_more(int method) {
    FILE *stream;
    char path[] = "/tmp/scarce-XXXXXX-x", name[40];
    int fd;
    switch (method) {
    case 0: return open("/dev/null", O_RDONLY);
    case 1: return socket(AF_INET, SOCK_STREAM, 0);
    case 2: return dup(0);
    case 3: return fcntl(0, F_DUPFD_CLOEXEC, 0);
    case 4: return epoll_create1(0);
    case 6:
        if ((fd = mkstemps(path, 2)) >= 0)
            unlink(path);
        return fd;
    case 7: return tmpfile() ? 0 : -1;
    case 8:
        snprintf(name, sizeof name, "/scarce-%d", getpid());
        if ((fd = shm_open(name, O_RDWR | O_CREAT, 0600)) >= 0)
            shm_unlink(name);
        return fd;
    case 9: return posix_openpt(O_RDWR);
    case 10: return pidfd_open(getpid(), 0);
    case 11: return syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY);
    case 12: return receive_one();
    case 13: return popen("true", "r") ? 0 : -1;
    default: return (stream = fopen("/dev/null", "r")) ? fileno(stream) : -1;
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    is_server = strcmp(argv[1], "server") == 0;
    int method = -1;
    CHECK(sscanf(argv[argc - 1], "%d,%d", &connections, &method) >= 1);
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
    while (one_more(method < 0 ? opened % 6 : method) >= 0)
        opened++;
    printf("%d more, then %s\n", opened, strerrorname_np(errno));
    for (int at = 0; at < connections; at++)
        exchange(fds[at], 40);
    printf("done\n");
    return 0;
}
