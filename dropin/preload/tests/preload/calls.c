/* All calls on a connection, in step at both ends: prints each result, so that runs can be compared. */
#include "peer.h"

static int is_server, fd;
static char big[1 << 20];

#define SHOW(call)                                                                             \
    do {                                                                                       \
        errno = 0;                                                                             \
        long result = (long)(call);                                                            \
        int error = result < 0 ? errno : 0;                                                    \
        printf("%d %s = %ld %s\n", __LINE__, #call, result, error ? strerrorname_np(error) : ""); \
        fflush(stdout);                                                                        \
    } while (0)

/* Lets the other end get here, too: over a connection of its own. */
static int step_fd;
static void step(void) {
    char byte = 's';
    CHECK(write(step_fd, &byte, 1) == 1 && read(step_fd, &byte, 1) == 1);
    usleep(2000);
}
#define SERVER if (is_server)
#define CLIENT if (!is_server)

static void begin(const char *what) {
    printf("-- %s\n", what);
    fd = meet(is_server);
    step();
}
static void end(void) {
    step();
    SHOW(close(fd));
    step();
}

static void bytes(void) {
    char a[64] = "", b[64] = "";
    struct iovec parts[2] = {{a, 5}, {b, 20}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    struct mmsghdr many[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    struct sockaddr_in from;
    socklen_t from_len = sizeof from;
    begin("bytes");
    SERVER {
        SHOW(write(fd, "hello", 5));
        SHOW(send(fd, "world", 5, MSG_NOSIGNAL));
        SHOW(sendto(fd, "third", 5, 0, NULL, 0));
        strcpy(a, "abcde"), strcpy(b, "fghij");
        parts[1].iov_len = 5;
        SHOW(writev(fd, parts, 2));
        SHOW(sendmsg(fd, &message, MSG_MORE));
        SHOW(sendmmsg(fd, many, 2, 0));
        SHOW(send(fd, "", 0, 0));
    }
    step();
    CLIENT {
        int n = -1;
        SHOW(ioctl(fd, FIONREAD, &n));
        printf("unread %d\n", n);
        SHOW(recv(fd, a, 5, MSG_PEEK));
        SHOW(recv(fd, a, 5, 0));
        SHOW(memcmp(a, "hello", 5));
        SHOW(recv(fd, a, 64, MSG_PEEK | MSG_DONTWAIT));
        SHOW(memcmp(a, "worldthirdabcdefghijabcdefghij", 30));
        SHOW(recv(fd, NULL, 5, MSG_TRUNC));
        SHOW(recvfrom(fd, a, 5, 0, (void *)&from, &from_len));
        printf("address %d\n", (int)from_len);
        SHOW(readv(fd, parts, 2));
        SHOW(memcmp(a, "abcde", 5) | memcmp(b, "fghijabcdefghijabcde", 20));
        parts[0].iov_len = 64;
        message.msg_flags = -1;
        SHOW(recvmsg(fd, &message, 0));
        printf("flags %d control %d\n", message.msg_flags, (int)message.msg_controllen);
        SHOW(recv(fd, a, 5, MSG_DONTWAIT));
        SHOW(recv(fd, a, 0, MSG_DONTWAIT));
        SHOW(fcntl(fd, F_SETFL, O_NONBLOCK));
        SHOW(read(fd, a, 5));
        SHOW(recvmmsg(fd, many, 2, 0, NULL));
        SHOW(fcntl(fd, F_SETFL, 0));
    }
    step();
    SERVER {
        usleep(20000);
        SHOW(send(fd, "0123456789", 4, 0));
        usleep(20000);
        SHOW(send(fd, "456789", 6, 0));
    }
    CLIENT {
        SHOW(recv(fd, a, 10, MSG_WAITALL));
        SHOW(memcmp(a, "0123456789", 10));
    }
    end();
}

static void ready(void) {
    char a[64];
    struct pollfd entry = {.fd = -1, .events = POLLIN | POLLOUT | POLLRDHUP};
    fd_set reads, writes;
    struct timeval none = {0, 0}, tick = {0, 20000};
    begin("poll and select");
    entry.fd = fd;
    CLIENT {
        SHOW(poll(&entry, 1, 0));
        printf("events %x\n", entry.revents);
        entry.events = POLLIN;
        SHOW(poll(&entry, 1, 10));
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        FD_ZERO(&writes);
        FD_SET(fd, &writes);
        SHOW(select(fd + 1, &reads, &writes, NULL, &none));
        printf("set %d %d\n", !!FD_ISSET(fd, &reads), !!FD_ISSET(fd, &writes));
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        SHOW(select(fd + 1, &reads, NULL, NULL, &tick));
    }
    step();
    SERVER SHOW(send(fd, "x", 1, 0));
    CLIENT {
        SHOW(poll(&entry, 1, -1));
        printf("events %x\n", entry.revents);
        struct timespec second = {10, 0};
        SHOW(ppoll(&entry, 1, &second, NULL));
        FD_ZERO(&reads);
        FD_SET(fd, &reads);
        SHOW(pselect(fd + 1, &reads, NULL, NULL, &second, NULL));
        SHOW(recv(fd, a, 64, 0));
        tick.tv_usec = 20000;
        SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick));
        SHOW(recv(fd, a, 64, 0));
    }
    end();
}

static void epolls(void) {
    char a[64];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, got[4];
    int ep = epoll_create1(EPOLL_CLOEXEC);
#define WAIT(ms)                                                             \
    do {                                                                     \
        memset(got, 0, sizeof got);                                          \
        SHOW(epoll_wait(ep, got, 4, ms));                                    \
        printf("events %x data %d\n", got[0].events, (int)got[0].data.u64);  \
    } while (0)
    begin("epoll");
    CLIENT {
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        WAIT(0);
    }
    step();
    SERVER SHOW(send(fd, "ab", 2, 0));
    CLIENT {
        WAIT(-1);
        WAIT(0);
        SHOW(recv(fd, a, 1, 0));
        WAIT(0);
        event.events = EPOLLIN | EPOLLOUT;
        event.data.u64 = 8;
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
        WAIT(0);
        event.events = EPOLLIN | EPOLLET;
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
        WAIT(0);
        WAIT(0);
    }
    step();
    SERVER SHOW(send(fd, "c", 1, 0));
    CLIENT {
        WAIT(-1);
        WAIT(10);
        SHOW(recv(fd, a, 64, 0));
        event.events = EPOLLIN | EPOLLONESHOT;
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
    }
    step();
    SERVER SHOW(send(fd, "d", 1, 0));
    CLIENT {
        WAIT(-1);
        WAIT(10);
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
        WAIT(0);
        SHOW(recv(fd, a, 64, 0));
        event.events = EPOLLIN | EPOLLRDHUP;
        int other = fcntl(ep, F_DUPFD_CLOEXEC, 100);
        SHOW(epoll_ctl(other, EPOLL_CTL_MOD, fd, &event));
        close(ep);
        ep = other;
    }
    step();
    SERVER SHOW(shutdown(fd, SHUT_WR));
    CLIENT {
        WAIT(-1);
        SHOW(recv(fd, a, 64, 0));
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
        WAIT(0);
        SHOW(send(fd, "back", 4, 0));
    }
    SERVER SHOW(recv(fd, a, 64, 0));
    end();
    begin("a member that is removed and added");
    CLIENT {
        event.events = EPOLLIN;
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
    }
    step();
    SERVER SHOW(send(fd, "in", 2, 0));
    step();
    CLIENT {
        WAIT(10);
        event.events = EPOLLIN | EPOLLET;
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        WAIT(-1);
        WAIT(0);
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
        SHOW(recv(fd, a, 64, 0));
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        WAIT(0);
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
    }
    step();
    SERVER SHOW(shutdown(fd, SHUT_WR));
    step();
    CLIENT {
        WAIT(10);
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        WAIT(-1);
        SHOW(recv(fd, a, 64, 0));
        SHOW(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
        WAIT(0);
    }
    end();
    begin("one epoll inside of another");
    CLIENT {
        int outer = epoll_create1(EPOLL_CLOEXEC);
        event.events = EPOLLIN;
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        SHOW(epoll_ctl(outer, EPOLL_CTL_ADD, ep, &event));
        SHOW(epoll_wait(outer, got, 4, 0));
        step();
        SHOW(epoll_wait(outer, got, 4, 60000));
        SHOW(recv(fd, a, 64, 0));
        close(outer);
    }
    SERVER {
        step();
        SHOW(send(fd, "x", 1, 0));
    }
    end();
    close(ep);
}

static void ends(void) {
    char a[64];
    struct linger hard = {1, 0};
    int error = -1;
    socklen_t len = sizeof error;
    begin("half-close, then bytes the other way");
    SERVER {
        SHOW(send(fd, "last", 4, 0));
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(recv(fd, a, 5, MSG_WAITALL));
        SHOW(recv(fd, a, 5, 0));
    }
    CLIENT {
        SHOW(recv(fd, a, 4, MSG_WAITALL));
        SHOW(recv(fd, a, 4, 0));
        SHOW(send(fd, "reply", 5, 0));
        SHOW(shutdown(fd, SHUT_RDWR));
        SHOW(recv(fd, a, 4, 0));
    }
    end();
    begin("close with bytes in flight");
    SERVER {
        SHOW(send(fd, "bye", 3, 0));
        SHOW(close(fd));
        fd = open("/dev/null", O_RDONLY);
    }
    step();
    CLIENT {
        SHOW(recv(fd, a, 64, 0));
        SHOW(recv(fd, a, 64, 0));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        usleep(20000);
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    }
    end();
    begin("close with unread bytes is a reset");
    CLIENT SHOW(send(fd, "unread", 6, 0));
    step();
    SERVER {
        SHOW(close(fd));
        fd = open("/dev/null", O_RDONLY);
    }
    step();
    CLIENT {
        SHOW(recv(fd, a, 64, 0));
        SHOW(recv(fd, a, 64, 0));
        SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
        printf("error %d\n", error);
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    }
    end();
    begin("linger of zero");
    SERVER {
        SHOW(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
        SHOW(close(fd));
        fd = open("/dev/null", O_RDONLY);
    }
    step();
    CLIENT SHOW(recv(fd, a, 64, 0));
    end();
}

static void kernels(void) {
    char a[64];
    int pipes[2];
    begin("dup");
    CLIENT {
        int other = dup(fd);
        SHOW(write(other, "one", 3));
        SHOW(close(fd));
        SHOW(write(other, "two", 3));
        fd = other;
    }
    SERVER SHOW(recv(fd, a, 6, MSG_WAITALL));
    end();
    begin("dup2 over a connection");
    CLIENT SHOW(dup2(open("/dev/null", O_RDWR), fd) == fd);
    SERVER SHOW(recv(fd, a, 6, 0));
    end();
    begin("urgent data");
    SERVER {
        SHOW(send(fd, "ab", 2, 0));
        SHOW(send(fd, "!", 1, MSG_OOB));
        SHOW(send(fd, "cd", 2, 0));
    }
    step();
    CLIENT {
        SHOW(recv(fd, a, 1, MSG_OOB));
        printf("urgent %c\n", a[0]);
        SHOW(recv(fd, a, 2, MSG_WAITALL));
        SHOW(recv(fd, a, 2, MSG_WAITALL));
        SHOW(memcmp(a, "cd", 2));
    }
    end();
    begin("sendfile and splice");
    SERVER {
        int file = open("/proc/self/exe", O_RDONLY);
        SHOW(sendfile(fd, file, NULL, 4096));
        close(file);
    }
    CLIENT {
        CHECK(pipe(pipes) == 0);
        step();
        SHOW(recv(fd, big, 96, MSG_WAITALL));
        SHOW(splice(fd, NULL, pipes[1], NULL, 4000, 0));
        SHOW(memcmp(big, "\177ELF", 4));
        close(pipes[0]), close(pipes[1]);
    }
    SERVER step();
    end();
    begin("a stream of the C library's");
    CLIENT {
        FILE *stream = fdopen(fcntl(fd, F_DUPFD_CLOEXEC, 50), "r+");
        SHOW(fputs("line\n", stream) >= 0 && fflush(stream) == 0);
        SHOW(fgets(a, 64, stream) != NULL);
        printf("%s", a);
        fclose(stream);
    }
    SERVER {
        SHOW(recv(fd, a, 5, MSG_WAITALL));
        SHOW(send(fd, "back\n", 5, 0));
    }
    end();
    begin("exec");
    CLIENT {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            dup2(fd, 1);
            execl("/bin/echo", "echo", "-n", "from", "echo", (char *)NULL);
            _exit(9);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid);
        SHOW(status);
        SHOW(send(fd, "!", 1, 0));
    }
    SERVER {
        SHOW(recv(fd, a, 10, MSG_WAITALL));
        SHOW(memcmp(a, "from echo!", 10));
    }
    end();
    begin("a descriptor that is sent");
    CLIENT {
        int pair[2], got = -1;
        char control[CMSG_SPACE(sizeof(int))] = "", byte = 'f';
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
        SHOW(sendmsg(pair[0], &message, 0));
        SHOW(recvmsg(pair[1], &message, 0));
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
        SHOW(write(got, "sent", 4));
        close(got), close(pair[0]), close(pair[1]);
    }
    SERVER SHOW(recv(fd, a, 4, MSG_WAITALL));
    end();
    begin("close_range");
    CLIENT {
        int high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
        SHOW(close_range(200, 300, 0));
        SHOW(fcntl(high, F_GETFD));
        SHOW(write(fd, "still", 5));
    }
    SERVER SHOW(recv(fd, a, 5, MSG_WAITALL));
    end();
}

static void full(void) {
    /* As many bytes as fit, then free space again. */
    struct timeval tick = {0, 50000};
    begin("a full connection");
    SERVER {
        struct epoll_event event = {.events = EPOLLOUT | EPOLLET}, got;
        int ep = epoll_create1(EPOLL_CLOEXEC);
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
        SHOW(epoll_wait(ep, &got, 1, 0));
        while (write(fd, big, sizeof big) > 0) {
        }
        SHOW(errno == EAGAIN);
        SHOW(epoll_wait(ep, &got, 1, 0));
        step();
        SHOW(epoll_wait(ep, &got, 1, 60000));
        printf("events %x\n", got.events);
        SHOW(write(fd, big, 1));
        close(ep);
        CHECK(fcntl(fd, F_SETFL, 0) == 0);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tick, sizeof tick) == 0);
        step();
        while (send(fd, big, sizeof big, 0) == sizeof big) {
        }
        CHECK(send(fd, big, 1, 0) == 1 || errno == EAGAIN);
        SHOW(shutdown(fd, SHUT_WR));
        step();
    }
    CLIENT {
        step();
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tick, sizeof tick) == 0);
        while (recv(fd, big, sizeof big, 0) > 0) {
        }
        SHOW(errno == EAGAIN);
        step();
        step();
        while (recv(fd, big, sizeof big, 0) > 0) {
        }
        SHOW(recv(fd, big, sizeof big, 0));
    }
    end();
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    is_server = strcmp(argv[1], "server") == 0;
    signal(SIGPIPE, SIG_IGN);
    alarm(300);
    open_port(is_server, argc > 2 ? argv[2] : "0");
    step_fd = meet(is_server);
    bytes();
    ready();
    epolls();
    ends();
    kernels();
    full();
    printf("done\n");
    return 0;
}
