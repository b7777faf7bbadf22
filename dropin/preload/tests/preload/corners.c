/* Corners of the interface on paired connections, in step at both ends: prints the result of each call, so that runs
 * can be compared. */
#include "peer.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

static int is_server, fd, step_fd;

#define SHOW(call)                                                                             \
    do {                                                                                       \
        errno = 0;                                                                             \
        long result = (long)(call);                                                            \
        int error = result < 0 ? errno : 0;                                                    \
        printf("%d %s = %ld %s\n", __LINE__, #call, result, error ? strerrorname_np(error) : ""); \
        fflush(stdout);                                                                        \
    } while (0)

/* Lets the other end get here, too: over a connection of its own. */
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

static void nothing(void) {
    char a[64];
    struct iovec empty[2] = {{a, 0}, {NULL, 0}};
    begin("reads and writes of nothing");
    CLIENT {
        SHOW(read(fd, a, 0));
        SHOW(readv(fd, empty, 2));
        SHOW(write(fd, a, 0));
        SHOW(writev(fd, empty, 2));
        SHOW(recv(fd, a, 0, MSG_DONTWAIT));
    }
    step();
    SERVER SHOW(shutdown(fd, SHUT_WR));
    step();
    CLIENT {
        SHOW(recv(fd, a, 1, 0));
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(writev(fd, empty, 2));
        SHOW(writev(fd, NULL, 0));
        SHOW(read(fd, a, 0));
    }
    end();
}

/* Fewer bytes than SO_RCVLOWAT are none for `poll`, and some for a read of nothing. */
static void few(void) {
    char a[64];
    int three = 3;
    struct pollfd entry = {.events = POLLIN};
    begin("few bytes beside SO_RCVLOWAT");
    entry.fd = fd;
    SERVER SHOW(send(fd, "x", 1, 0));
    step();
    CLIENT {
        SHOW(poll(&entry, 1, 1000));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &three, sizeof three));
        SHOW(poll(&entry, 1, 0));
    }
    step();
    SERVER SHOW(send(fd, "yz", 2, 0));
    step();
    CLIENT {
        SHOW(poll(&entry, 1, 1000));
        SHOW(recv(fd, a, 3, 0));
        SHOW(recv(fd, a, 0, MSG_DONTWAIT));
    }
    step();
    SERVER SHOW(send(fd, "x", 1, 0));
    step();
    CLIENT {
        SHOW(poll(&entry, 1, 0));
        SHOW(recv(fd, a, 0, MSG_PEEK | MSG_DONTWAIT));
        SHOW(recv(fd, a, 0, 0));
        SHOW(recv(fd, a, 1, 0));
    }
    end();
}

/* Not constants, which compilers warn of. */
static void *volatile low = (void *)1, *volatile null = NULL, *volatile high = (void *)-4096;

static void pointers(void) {
    char a[64];
    struct iovec parts[2] = {{a, 4}, {NULL, 4}};
    begin("addresses without memory");
    SERVER {
        SHOW(write(fd, low, 5));
        SHOW(send(fd, null, 5, 0));
        SHOW(send(fd, high, 5, 0));
        SHOW(send(fd, "right", 5, 0));
    }
    step();
    CLIENT {
        SHOW(read(fd, null, 5));
        SHOW(recv(fd, high, 5, 0));
        SHOW(recv(fd, a, 5, MSG_PEEK));
        parts[1].iov_base = a + 8, parts[1].iov_len = 8;
        SHOW(readv(fd, parts, 2));
    }
    end();
}

/* Buffers longer than any can be, and flags that no kernel knows. */
static void lengths(void) {
    char a[64] = "0123456789";
    struct iovec parts[2] = {{a, 3}, {a, (size_t)-1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    volatile size_t longest = -1;
    begin("lengths that are negative, unknown flags");
    CLIENT {
        SHOW(writev(fd, parts, 2));
        SHOW(sendmsg(fd, &message, 0));
        SHOW(write(fd, a, longest));
        SHOW(readv(fd, parts, 2));
        SHOW(recvmsg(fd, &message, 0));
        SHOW(syscall(SYS_read, fd, a, longest));
        message.msg_iovlen = 2000;
        SHOW(sendmsg(fd, &message, 0));
        SHOW(preadv2(fd, parts, 1, -1, 0x1000));
        SHOW(pwritev2(fd, parts, 1, -1, 0x1000));
        SHOW(send(fd, a, 1, 0));
    }
    SERVER SHOW(recv(fd, a, 64, 0));
    end();
}

/* A receiver that peeks at all requested bytes waits for them. */
static void peeks(void) {
    char a[64] = "";
    struct timeval short_time = {0, 50000};
    begin("peeking at all bytes");
    SERVER {
        SHOW(send(fd, "0123", 4, 0));
        step();
        usleep(30000);
        SHOW(send(fd, "4567", 4, 0));
        step();
        SHOW(send(fd, "89", 2, 0));
        SHOW(shutdown(fd, SHUT_WR));
    }
    CLIENT {
        step();
        SHOW(recv(fd, a, 8, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT));
        SHOW(recv(fd, a, 8, MSG_PEEK | MSG_WAITALL));
        SHOW(memcmp(a, "01234567", 8));
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time) == 0);
        SHOW(recv(fd, a, 9, MSG_PEEK | MSG_WAITALL));
        short_time.tv_usec = 0;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time) == 0);
        step();
        SHOW(recv(fd, a, 64, MSG_PEEK | MSG_WAITALL));
        SHOW(recv(fd, a, 64, MSG_WAITALL));
    }
    end();
}

/* A receive ends before an urgent byte. */
static void urgent(void) {
    char a[64] = "";
    begin("an urgent byte");
    SERVER {
        SHOW(send(fd, "abc", 3, 0));
        SHOW(send(fd, "U", 1, MSG_OOB));
        SHOW(send(fd, "def", 3, 0));
    }
    step();
    CLIENT {
        struct pollfd entry = {.fd = fd, .events = POLLPRI};
        SHOW(poll(&entry, 1, 5000));
        SHOW(recv(fd, a, 64, 0));
        SHOW(recv(fd, a, 1, MSG_OOB));
        SHOW(a[0]);
        SHOW(recv(fd, a, 64, 0));
    }
    end();
}

/* Functions for other descriptors that read and write any. */
static void eights(void) {
    char a[64] = "";
    eventfd_t number = 0;
    begin("functions of eventfd");
    SERVER {
        SHOW(write(fd, "A", 1));
        SHOW(eventfd_write(fd, 0x4242424242424242));
        SHOW(write(fd, "C01234567", 9));
    }
    step();
    CLIENT {
        SHOW(recv(fd, a, 10, MSG_WAITALL));
        SHOW(memcmp(a, "ABBBBBBBBC", 10));
        SHOW(eventfd_read(fd, &number));
        printf("%lx\n", (long)number);
    }
    end();
}

/* Pages that are not there, or that cannot be written, behind pages that are. */
static void pages(void) {
    enum { PAGE = 4096 };
    char *at = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at + PAGE, PAGE, PROT_READ) == 0 && mprotect(at + 2 * PAGE, PAGE, PROT_NONE) == 0);
    char *fixed = at + PAGE, *hidden = at + 2 * PAGE, *gone = at + 3 * PAGE;
    struct iovec parts[2] = {{at, 4}, {gone, 4}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    begin("pages that cannot be accessed");
    SERVER {
        SHOW(send(fd, fixed, 5, 0));
        SHOW(send(fd, gone, 5, 0));
        SHOW(munmap(gone, PAGE));
        SHOW(send(fd, gone, 5, 0));
        SHOW(send(fd, hidden, 5, 0));
        SHOW(send(fd, hidden - 3, 5, 0));
        SHOW(writev(fd, parts, 2));
        SHOW(writev(fd, (void *)hidden, 2));
        SHOW(sendmsg(fd, (void *)hidden, 0));
        SHOW(sendmsg(fd, &message, 0));
        /* Control data that claim to be longer than they are. */
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr header;
        } control = {.header = {.cmsg_len = PAGE, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
        struct msghdr rights = {.msg_control = &control, .msg_controllen = sizeof control};
        rights.msg_iov = parts, rights.msg_iovlen = 1;
        SHOW(sendmsg(fd, &rights, 0));
        control.header.cmsg_len = (size_t)-1;
        SHOW(sendmsg(fd, &rights, 0));
        void *blocks[2] = {hidden, gone};
        unsigned long context = 0;
        CHECK(syscall(SYS_io_setup, 4, &context) == 0);
        SHOW(syscall(SYS_io_submit, context, 2, blocks));
        SHOW(syscall(SYS_io_submit, context, 1, hidden));
        CHECK(syscall(SYS_io_destroy, context) == 0);
    }
    step();
    CLIENT {
        SHOW(recv(fd, fixed, 5, 0));
        SHOW(recv(fd, hidden, 5, MSG_PEEK));
        SHOW(recv(fd, fixed - 3, 5, 0));
        SHOW(recvmsg(fd, (void *)hidden, 0));
        SHOW(readv(fd, (void *)hidden, 1));
        SHOW(poll((void *)hidden, 1, 0));
        SHOW(select(fd + 1, (void *)hidden, NULL, NULL, NULL));
        SHOW(epoll_ctl(step_fd, EPOLL_CTL_ADD, fd, (void *)hidden));
        /* Only what arrives must have its place. */
        SHOW(recv(fd, fixed - 10, PAGE, 0));
    }
    munmap(at, 3 * PAGE);
    end();
}

/* Pages that other functions have taken away. */
static void replaced(void) {
    enum { PAGE = 4096 };
    begin("pages that were accessible");
    SERVER for (int way = 0; way < 3; way++) {
        char *at = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *moved = at;
        CHECK(at != MAP_FAILED && at[0] == 0);
        SHOW(send(fd, at, 5, 0));
        if (way == 0)
            CHECK(mmap(at, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        else if (way == 1)
            CHECK((moved = mremap(at, 2 * PAGE, 4096 * PAGE, MREMAP_MAYMOVE)) != MAP_FAILED);
        else
            CHECK(pkey_mprotect(at, 2 * PAGE, PROT_NONE, -1) == 0);
        /* A mapping may have had room to grow. */
        if (way != 1 || moved != at)
            SHOW(send(fd, at, 5, 0));
        else
            printf("%d send(fd, at, 5, 0) = -1 EFAULT\n", __LINE__ - 2);
    }
    CLIENT {
        char a[15];
        SHOW(recv(fd, a, 15, MSG_WAITALL));
    }
    end();
}

static void unsent(void) {
    char a[5000] = "";
    int n = -1;
    begin("bytes that the peer's kernel has and its program has not");
    SERVER {
        SHOW(send(fd, a, sizeof a, 0));
        usleep(100000);
        SHOW(ioctl(fd, TIOCOUTQ, &n));
        printf("unsent %d\n", n);
    }
    step();
    CLIENT SHOW(recv(fd, a, sizeof a, MSG_WAITALL));
    end();
}

static void resets(int polls) {
    char a[64];
    int error = -1;
    socklen_t len = sizeof error;
    struct linger hard = {1, 0};
    struct pollfd entry = {.fd = -1, .events = POLLIN | POLLOUT};
    begin("a reset is reported once");
    SERVER {
        SHOW(send(fd, "last", 4, 0));
        step();
        SHOW(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
        SHOW(close(fd));
        fd = open("/dev/null", O_RDONLY);
    }
    CLIENT {
        SHOW(send(fd, "unread", 6, 0));
        step();
    }
    step();
    CLIENT {
        entry.fd = fd;
        if (polls) {
            SHOW(poll(&entry, 1, 1000));
            printf("events %x\n", entry.revents);
        }
        if (polls == 2) {
            SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
            printf("error %d\n", error);
        }
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(recv(fd, a, 64, 0) >= 0);
        SHOW(recv(fd, a, 64, 0));
    }
    end();
}

/* recvmmsg reports an error before the bytes that arrived before it, also on an unpaired connection. */
static void errors_first(int meets) {
    char a[8];
    struct linger hard = {1, 0};
    struct iovec part = {a, 2};
    struct mmsghdr many[1] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    printf("-- an error before bytes\n");
    fd = meets ? meet(is_server) : connection(is_server);
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    step();
    SERVER SHOW(send(fd, "last", 4, 0));
    step();
    SERVER {
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
        SHOW(close(fd));
        fd = open("/dev/null", O_RDONLY);
    }
    step();
    CLIENT {
        for (int turns = 0; turns < 5000 && !(entry.revents & POLLHUP); turns++)
            CHECK(poll(&entry, 1, 0) >= 0 && usleep(1000) == 0);
        SHOW(recvmmsg(fd, many, 1, 0, NULL));
        SHOW(recvmmsg(fd, many, 1, 0, NULL));
        SHOW(recv(fd, a, 8, 0));
        SHOW(recv(fd, a, 8, 0));
    }
    end();
}

/* A member whose bytes are unread when both directions have ended is reported with its end, also if it is so once. */
static void ended(void) {
    char a[8];
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 3}, got[2];
    begin("an end behind unread bytes");
    int ep = epoll_create1(EPOLL_CLOEXEC);
    CLIENT SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
    step();
    SERVER SHOW(send(fd, "last", 4, 0));
    step();
    CLIENT SHOW(epoll_wait(ep, got, 2, 5000));
    SERVER SHOW(shutdown(fd, SHUT_WR));
    step();
    CLIENT {
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
        SHOW(epoll_wait(ep, got, 2, 5000));
        printf("events %x\n", got[0].events);
        SHOW(recv(fd, a, 8, 0));
    }
    close(ep);
    end();
}

/* Prints a wait's result and the first bytes of the array that it may write. */
#define SHOW_ARRAY(call, array)                                                                          \
    do {                                                                                                 \
        memset(array, 0x5A, sizeof array);                                                               \
        SHOW(call);                                                                                      \
        for (size_t i = 0; i < sizeof array; i++)                                                        \
            printf("%02x%s", ((unsigned char *)array)[i], i + 1 < sizeof array ? "" : "\n");             \
    } while (0)

static void interrupt(int number) {
    (void)number;
}

/* Waits that find nothing, or are interrupted, leave what the kernel leaves in the program's arrays. */
static void arrays(void) {
    char a[8];
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 3}, got[3], half[2];
    struct timespec soon = {0, 5000000};
    struct pollfd entries[2];
    fd_set sets[2];
    begin("arrays of waits");
    CLIENT {
        int ep = epoll_create1(EPOLL_CLOEXEC);
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        SHOW_ARRAY(epoll_wait(ep, got, 3, 0), got);
        SHOW_ARRAY(epoll_wait(ep, got, 3, 20), got);
        SHOW_ARRAY(epoll_wait(ep, got, 1, 20), got);
        SHOW_ARRAY(epoll_pwait2(ep, got, 3, &soon, NULL), got);
        SHOW_ARRAY(epoll_wait(ep, got, 0, 0), got);
        SHOW_ARRAY(epoll_wait(-1, got, 3, 0), got);
        /* The alarm of this process ends waits. */
        struct sigaction action = {.sa_handler = interrupt}, before;
        struct itimerval tick = {.it_value = {0, 20000}};
        CHECK(sigaction(SIGALRM, &action, &before) == 0);
        CHECK(setitimer(ITIMER_REAL, &tick, NULL) == 0);
        SHOW_ARRAY(epoll_wait(ep, got, 3, 5000), got);
#define ENTRIES                                                                       \
    for (int i = 0; i < 2; i++)                                                       \
    entries[i] = (struct pollfd){.fd = i ? -1 : fd, .events = POLLIN, .revents = 0x5A}
#define SHOW_POLL(call)                                                       \
    do {                                                                      \
        ENTRIES;                                                              \
        SHOW(call);                                                           \
        printf("events %x %x\n", entries[0].revents, entries[1].revents);     \
    } while (0)
        CHECK(setitimer(ITIMER_REAL, &tick, NULL) == 0);
        SHOW_POLL(poll(entries, 2, 5000));
        SHOW_POLL(poll(entries, 2, 0));
        SHOW_POLL(poll(entries, 2, 20));
        SHOW_POLL(ppoll(entries, 2, &soon, NULL));
#define SHOW_SETS(call)                                                                               \
    do {                                                                                              \
        memset(sets, 0, sizeof sets);                                                                 \
        FD_SET(fd, &sets[0]);                                                                         \
        FD_SET(fd, &sets[1]);                                                                         \
        SHOW(call);                                                                                   \
        printf("sets %d %d\n", FD_ISSET(fd, &sets[0]) != 0, FD_ISSET(fd, &sets[1]) != 0);             \
    } while (0)
        struct timeval none = {0, 0}, long_time = {5, 0}, wrong = {-1, 0};
        SHOW_SETS(select(fd + 1, &sets[0], NULL, &sets[1], &none));
        SHOW_SETS(pselect(fd + 1, &sets[0], NULL, &sets[1], &soon, NULL));
        SHOW_SETS(select(fd + 1, &sets[0], NULL, &sets[1], &wrong));
        CHECK(setitimer(ITIMER_REAL, &tick, NULL) == 0);
        SHOW_SETS(select(fd + 1, &sets[0], NULL, &sets[1], &long_time));
        CHECK(sigaction(SIGALRM, &before, NULL) == 0);
        alarm(300);
        /* System calls store the time that is left, functions of the C library do not. */
        struct timespec left = soon;
        void *pair[2] = {NULL, NULL}, *wrong_pair[2] = {&event, (void *)1};
        SHOW_POLL(syscall(SYS_ppoll, entries, 2, &left, NULL, 8));
        printf("left %d %d, of the library's %ld\n", left.tv_sec == 0, left.tv_nsec == 0, soon.tv_nsec);
        left = soon;
        SHOW_SETS(syscall(SYS_pselect6, fd + 1, &sets[0], NULL, &sets[1], &left, pair));
        printf("left %d %d\n", left.tv_sec == 0, left.tv_nsec == 0);
        SHOW_SETS(syscall(SYS_pselect6, fd + 1, &sets[0], NULL, &sets[1], &soon, 16));
        SHOW_SETS(syscall(SYS_pselect6, fd + 1, &sets[0], NULL, &sets[1], &soon, wrong_pair));
        static const struct timeval constant = {0, 1000};
        SHOW_SETS(syscall(SYS_select, fd + 1, &sets[0], NULL, &sets[1], &constant));
        step();
        SHOW_ARRAY(epoll_wait(ep, half, 2, 5000), half);
        SHOW(recv(fd, a, 8, 0));
        SHOW_ARRAY(epoll_wait(ep, half, 2, 0), half);
        /* The kernel writes events up to a page that cannot be written; a second member is ready as well. */
        long page = sysconf(_SC_PAGESIZE);
        char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
        struct epoll_event *border = (struct epoll_event *)(pages + page);
        int counter = eventfd(1, EFD_CLOEXEC);
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, counter, &event) == 0);
        step();
        step();
        SHOW(epoll_wait(ep, border - 1, 3, 5000));
        SHOW(epoll_wait(ep, border, 3, 0));
        CHECK(close(counter) == 0 && munmap(pages, 2 * page) == 0);
        SHOW(recv(fd, a, 8, 0));
        close(ep);
    }
    SERVER {
        step();
        SHOW(send(fd, "x", 1, 0));
        step();
        SHOW(send(fd, "y", 1, 0));
        step();
    }
    end();
}

static int signals;
static void count(int number) {
    signals += number == SIGUSR1;
}

static void polls(void) {
    char a[64];
    struct pollfd entries[3];
    struct timespec none = {0, 0}, long_time = {5, 0};
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = 3}, got[2];
    sigset_t blocked, open_mask;
    begin("one descriptor twice, signals that wait, exclusive members");
    for (int i = 0; i < 3; i++)
        entries[i] = (struct pollfd){.fd = fd, .events = i == 1 ? POLLOUT : POLLIN};
    CLIENT {
        SHOW(poll(entries, 3, 0));
        printf("events %x %x %x\n", entries[0].revents, entries[1].revents, entries[2].revents);
        signal(SIGUSR1, count);
        sigemptyset(&blocked), sigaddset(&blocked, SIGUSR1);
        CHECK(sigprocmask(SIG_BLOCK, &blocked, &open_mask) == 0 && kill(getpid(), SIGUSR1) == 0);
        SHOW(ppoll(entries, 1, &none, &open_mask));
        printf("signals %d\n", signals);
        CHECK(kill(getpid(), SIGUSR1) == 0);
        SHOW(ppoll(entries, 1, &long_time, &open_mask));
        printf("signals %d\n", signals);
        CHECK(sigprocmask(SIG_SETMASK, &open_mask, NULL) == 0);
        int ep = epoll_create1(EPOLL_CLOEXEC);
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        event.events = EPOLLIN;
        SHOW(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &event));
        step();
        SHOW(epoll_wait(ep, got, 2, 5000));
        SHOW(poll(entries, 3, -1));
        printf("events %x %x %x\n", entries[0].revents, entries[1].revents, entries[2].revents);
        SHOW(recv(fd, a, 64, 0));
        close(ep);
    }
    SERVER {
        step();
        SHOW(send(fd, "x", 1, 0));
    }
    end();
}

static volatile int ticks;
static void tick(int number) {
    /* The third SIGUSR2 requests a byte of the server, which ends the read. */
    if (++ticks == 3 && number == SIGUSR2)
        CHECK(write(step_fd, "s", 1) == 1);
}

/* Of two handlers, the one that runs decides whether a call continues. */
static void interruptions(void) {
    char a[64];
    struct sigaction action = {.sa_handler = tick};
    begin("calls that signals interrupt");
    CLIENT {
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        action.sa_flags = SA_RESTART;
        CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
    }
    for (int number = 0; number < 2; number++) {
        SERVER if (number == 0) {
            CHECK(read(step_fd, a, 1) == 1);
            SHOW(send(fd, "x", 1, 0));
        }
        CLIENT {
            timer_t timer;
            struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = number ? SIGUSR1 : SIGUSR2};
            struct itimerspec often = {{0, 20000000}, {0, 20000000}};
            ticks = 0;
            CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
            CHECK(timer_settime(timer, 0, &often, NULL) == 0);
            SHOW(read(fd, a, 1));
            CHECK(timer_delete(timer) == 0);
        }
        step();
    }
    end();
}

static sigjmp_buf before_call;
static void jump(int number) {
    siglongjmp(before_call, number);
}
static void *receive_one(void *bytes) {
    SHOW(recv(fd, bytes, 1, 0));
    return NULL;
}

/* A handler jumps out of calls that wait; later calls, of any thread, wait as before. */
static void jumps(void) {
    char a[64];
    pthread_t thread;
    struct sigaction action = {.sa_handler = jump, .sa_flags = SA_RESTART};
    struct itimerval soon = {.it_value = {0, 30000}};
    struct epoll_event event = {.events = EPOLLIN}, got;
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    begin("calls that a jump leaves");
    CLIENT {
        unsigned left = alarm(0);
        int ep = epoll_create1(EPOLL_CLOEXEC);
        CHECK(sigaction(SIGALRM, &action, NULL) == 0);
        entry.fd = fd;
        if (sigsetjmp(before_call, 1) == 0) {
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            SHOW(recv(fd, a, 1, 0));
        }
        if (sigsetjmp(before_call, 1) == 0) {
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            SHOW(poll(&entry, 1, -1));
        }
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event) == 0);
        if (sigsetjmp(before_call, 1) == 0) {
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            SHOW(epoll_wait(ep, &got, 1, -1));
        }
        close(ep);
        CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
        alarm(left);
        CHECK(pthread_create(&thread, NULL, receive_one, a) == 0);
        usleep(20000);
    }
    step();
    SERVER SHOW(send(fd, "x", 1, 0));
    CLIENT CHECK(pthread_join(thread, NULL) == 0);
    end();
    begin("sends and receives that a jump leaves");
    CLIENT {
        /* Signals arrive at any instruction of a call. */
        struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
        volatile int jumped = 0;
        char byte = 'x';
        unsigned left = alarm(0);
        CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
        if (sigsetjmp(before_call, 1) != 0)
            jumped++;
        while (jumped < 500) {
            send(fd, &byte, 1, MSG_DONTWAIT);
            recv(fd, a, 1, MSG_PEEK | MSG_DONTWAIT);
        }
        CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0 && signal(SIGALRM, SIG_DFL) != SIG_ERR);
        alarm(left);
        CHECK(shutdown(fd, SHUT_WR) == 0);
    }
    SERVER {
        while (recv(fd, a, sizeof a, 0) > 0) {
        }
        SHOW(send(fd, "x", 1, 0));
    }
    CLIENT SHOW(recv(fd, a, 1, 0));
    end();
}

/* The next connection of a socket is another one. */
static void dissociates(void) {
    char a[64] = "";
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 5}, got[2];
    begin("a socket that is connected again");
    int ep = epoll_create1(EPOLL_CLOEXEC), second = -1, error;
    CLIENT {
        SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
        SHOW(send(fd, "first", 5, 0));
    }
    step();
    SERVER SHOW(recv(fd, a, 5, MSG_WAITALL));
    step();
    CLIENT {
        SHOW(connect(fd, &none, sizeof none));
        SHOW(connect(fd, (void *)&address, sizeof address));
        SHOW(send(fd, "second", 6, 0));
    }
    SERVER {
        second = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        SHOW(recv(second, a, 6, MSG_WAITALL));
        SHOW(memcmp(a, "second", 6));
        SHOW(recv(fd, a, 5, 0));
        for (int i = 0; i < 60; i++)
            CHECK(send(second, "x", 1, 0) == 1 && recv(second, a, 1, 0) == 1);
        SHOW(send(second, "end", 3, 0));
        SHOW(close(second));
    }
    CLIENT {
        for (int i = 0; i < 60; i++) {
            CHECK(epoll_wait(ep, got, 2, 5000) == 1);
            CHECK(recv(fd, a, 1, 0) == 1 && send(fd, "x", 1, 0) == 1);
        }
        SHOW(recv(fd, a, 3, MSG_WAITALL));
        error = epoll_wait(ep, got, 2, 5000);
        SHOW(error);
    }
    close(ep);
    end();
}

/* The kernel begins to stamp packets some time after the first socket has requested it, and stops after the last is closed.
 * Returns when it does so. */
static void begin_stamps(void) {
    char a[1], control[256];
    int one = 1, far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), near;
    CHECK(connect(far, (void *)&address, sizeof address) == 0);
    CHECK((near = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0);
    CHECK(setsockopt(near, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) == 0);
    for (int is_stamped = 0; !is_stamped;) {
        struct iovec part = {a, sizeof a};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        CHECK(send(far, "x", 1, 0) == 1 && recvmsg(near, &message, 0) == 1);
        is_stamped = message.msg_controllen > 0;
        usleep(1000);
    }
}

/* Options of a socket that were set before its ends are paired. */
static void options(void) {
    char a[64], control[256];
    int one = 1, none = 0;
    struct iovec part = {a, sizeof a};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    SERVER {
        begin_stamps();
        CHECK(setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) == 0);
    }
    step();
    begin("an option of the listener's");
    SERVER {
        step();
        SHOW(recvmsg(fd, &message, 0));
        printf("stamped %d\n", message.msg_controllen > 0);
    }
    CLIENT {
        SHOW(send(fd, "abc", 3, 0));
        step();
    }
    end();
    SERVER CHECK(setsockopt(listener, SOL_SOCKET, SO_TIMESTAMPNS, &none, sizeof none) == 0);
    printf("-- signals for bytes, wished before the connection was made\n");
    CLIENT {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(signal(SIGUSR1, count) != SIG_ERR && fcntl(fd, F_SETSIG, SIGUSR1) == 0);
        CHECK(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_SETFL, O_ASYNC) == 0);
        CHECK(connect(fd, (void *)&address, sizeof address) == 0);
    }
    SERVER fd = connection(is_server);
    for (int i = 0; i < 60; i++) {
        char byte = 'x';
        SERVER CHECK(send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 1);
        CLIENT CHECK(recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, 0) == 1);
    }
    step();
    CLIENT signals = 0;
    step();
    SERVER SHOW(send(fd, "x", 1, 0));
    CLIENT {
        for (int turns = 0; turns < 5000 && signals == 0; turns++)
            usleep(1000);
        printf("signals %d\n", signals > 0);
        CHECK(fcntl(fd, F_SETFL, 0) == 0);
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
    nothing();
    few();
    lengths();
    peeks();
    urgent();
    eights();
    pointers();
    pages();
    replaced();
    unsent();
    for (int how = 0; how < 3; how++)
        resets(how);
    errors_first(0);
    errors_first(1);
    ended();
    arrays();
    polls();
    interruptions();
    jumps();
    dissociates();
    options();
    printf("done\n");
    return 0;
}
