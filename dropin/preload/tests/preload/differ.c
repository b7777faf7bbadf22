/* Random calls on connections whose two ends are in this process: `differ FIRST COUNT ROOM [verbose]` prints for each seed what
 * all calls of it returned, as one number or one by one, so that runs on TCP and in shared memory can be compared. Waits for
 * an epoll object, which has three members, have room for ROOM events. If that is less, several waits report all members that
 * are ready, in any order.
 *
 * Before a call whose result depends on what the other end did, it waits until the kernel, or the library, has delivered
 * that: then the results of TCP do not depend on time. */
#include "peer.h"

enum { STEPS = 70, LONGEST = 3000, MOST_UNREAD = 20000 };

static uint64_t state, digest;
static int is_verbose;
static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

/* One end. */
struct end {
    int fd, is_nonblocking, has_shut, has_reset, in_epoll;
    /* Bytes that were sent to it and not received. */
    long unread;
    uint64_t sent, received;
};
static struct end ends[2];
/* A pipe, which only the kernel knows, is in the epoll object, too. */
static int ep, pipes[2], room;

static void note(const char *what, int end, long result, long more) {
    int error = result < 0 ? errno : 0;
    if (is_verbose)
        printf("  end %d: %s = %ld %s, %lx\n", end, what, result, error ? strerrorname_np(error) : "", more);
    for (long value, i = 0; i < 4; i++) {
        value = i == 0 ? end : i == 1 ? result : i == 2 ? error : more;
        digest = (digest ^ (uint64_t)value) * 0x100000001B3u;
    }
}

static unsigned char byte_at(uint64_t at, int end) {
    uint64_t x = at * 0x9E3779B97F4A7C15u + end;
    return (x ^ x >> 29) >> 11;
}

/* Waits until an end has what was sent to it. */
static void settle(int end) {
    struct end *own = &ends[end], *peer = &ends[!end];
    int n = -1, gone = peer->fd < 0 || peer->has_shut;
    for (int turns = 0; turns < 100000; turns++) {
        struct pollfd entry = {.fd = own->fd, .events = POLLIN | POLLRDHUP};
        CHECK(poll(&entry, 1, 0) >= 0);
        if (peer->has_reset && entry.revents & (POLLERR | POLLHUP))
            return;
        if (!peer->has_reset && ioctl(own->fd, FIONREAD, &n) == 0 && n >= own->unread &&
            (!gone || entry.revents & (POLLRDHUP | POLLHUP)))
            return;
        usleep(50);
    }
    fprintf(stderr, "end %d has %d of %ld bytes\n", end, n, own->unread);
    exit(1);
}

static char out[LONGEST], in[LONGEST];
/* Not a constant, which compilers warn of. */
static void *volatile low = (void *)1;

static void send_some(int end) {
    struct end *own = &ends[end], *peer = &ends[!end];
    size_t len = next() % 8 == 0 ? 0 : next() % (next() % 2 ? 40 : LONGEST);
    if (peer->fd >= 0 && peer->unread + (long)len > MOST_UNREAD)
        return;
    for (size_t i = 0; i < len; i++)
        out[i] = byte_at(own->sent + i, end);
    struct iovec parts[3] = {{out, len / 3}, {NULL, 0}, {out + len / 3, len - len / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    struct mmsghdr many[1] = {{.msg_hdr = message}};
    ssize_t n;
    uint64_t kind = next() % 8;
    errno = 0;
    switch (kind) {
    case 0: n = write(own->fd, out, len); break;
    case 1: n = send(own->fd, out, len, MSG_NOSIGNAL); break;
    case 2: n = sendto(own->fd, out, len, MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0); break;
    case 3: n = writev(own->fd, parts, 3); break;
    case 4: n = sendmsg(own->fd, &message, MSG_NOSIGNAL); break;
    case 5: n = sendmmsg(own->fd, many, 1, MSG_NOSIGNAL) == 1 ? (ssize_t)many[0].msg_len : -1; break;
    case 6: n = send(own->fd, low, len, MSG_NOSIGNAL); break;
    default: n = writev(own->fd, parts + 1, 1); break;
    }
    note("send", end, n, kind);
    if (n > 0) {
        own->sent += n;
        if (peer->fd >= 0)
            peer->unread += n;
        else
            /* What arrives at a closed end is a reset. */
            ends[!end].has_reset = 1;
    }
}

static void receive_some(int end) {
    struct end *own = &ends[end];
    size_t len = next() % 8 == 0 ? 0 : next() % (next() % 2 ? 40 : LONGEST);
    int flags = (next() % 4 == 0 ? MSG_PEEK : 0) | (next() % 8 == 0 ? MSG_TRUNC : 0), is_bad = next() % 16 == 0;
    settle(end);
    /* SO_RCVLOWAT is 3 at most. */
    int is_quiet = own->unread < 4 && ends[!end].fd >= 0 && !ends[!end].has_shut && !ends[!end].has_reset;
    struct iovec parts[2] = {{in, len / 3}, {in + len / 3, len - len / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_flags = -1};
    struct mmsghdr many[1] = {{.msg_hdr = message}};
    uint64_t kind = next() % 7;
    /* No call waits for bytes that do not arrive; a read of zero bytes never waits. */
    if (is_quiet && !own->is_nonblocking)
        flags |= MSG_DONTWAIT;
    if ((kind == 0 || kind == 3) && is_quiet && !own->is_nonblocking)
        len = 0, parts[0].iov_len = parts[1].iov_len = 0;
    ssize_t n;
    memset(in, 0, sizeof in);
    errno = 0;
    if (is_bad)
        n = recv(own->fd, low, len + 1, flags & ~MSG_TRUNC), kind = 9;
    else
        switch (kind) {
        case 0: n = read(own->fd, in, len), flags = 0; break;
        case 1: n = recv(own->fd, in, len, flags); break;
        case 2: n = recvfrom(own->fd, in, len, flags, NULL, NULL); break;
        case 3: n = readv(own->fd, parts, 2), flags = 0; break;
        case 4: n = recvmsg(own->fd, &message, flags); break;
        case 5: n = recvmmsg(own->fd, many, 1, flags, NULL) == 1 ? (ssize_t)many[0].msg_len : -1; break;
        default: n = recv(own->fd, in, len, flags | (own->unread >= (long)len ? MSG_WAITALL : 0)); break;
        }
    /* A peek may end where a ring does. */
    note("receive", end, flags & MSG_PEEK && n > 0 ? 1 : n, kind | flags << 8);
    for (ssize_t i = 0; i < n && !(flags & MSG_TRUNC); i++)
        if ((unsigned char)in[i] != byte_at(own->received + i, !end)) {
            fprintf(stderr, "wrong byte %lu\n", (unsigned long)(own->received + i));
            exit(1);
        }
    if (n > 0 && !(flags & MSG_PEEK))
        own->received += n, own->unread -= n;
}

static void ask(int end) {
    struct end *own = &ends[end];
    static const short wishes[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, POLLRDHUP, POLLIN | POLLRDHUP, 0};
    struct pollfd entries[3] = {
        {.fd = own->fd, .events = wishes[next() % 6]}, {.fd = own->fd, .events = wishes[next() % 6]}, {.fd = -1}};
    struct timeval none = {0, 0};
    struct timespec no_time = {0, 0};
    struct epoll_event got[3] = {{0}};
    fd_set reads, writes;
    long n = 0, more = 0;
    int number = -1;
    socklen_t len = sizeof number;
    settle(end);
    errno = 0;
    switch (next() % 7) {
    case 0:
        n = poll(entries, 1 + next() % 3, 0);
        note("poll", end, n, entries[0].revents | entries[1].revents << 16);
        break;
    case 1:
        n = ppoll(entries, 2, &no_time, NULL);
        note("ppoll", end, n, entries[0].revents | entries[1].revents << 16);
        break;
    case 2:
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        FD_SET(own->fd, &reads);
        FD_SET(own->fd, &writes);
        n = select(own->fd + 1, &reads, next() % 2 ? &writes : NULL, NULL, &none);
        note("select", end, n, FD_ISSET(own->fd, &reads) != 0);
        break;
    case 3:
        n = ioctl(own->fd, FIONREAD, &number);
        note("FIONREAD", end, n, number);
        break;
    case 4:
        n = getsockopt(own->fd, SOL_SOCKET, SO_ERROR, &number, &len);
        note("SO_ERROR", end, n, number);
        break;
    default:
        for (int i = 0; i < 2; i++)
            if (ends[i].fd >= 0)
                settle(i);
        for (int turns = room < 3 ? 6 : 1; turns > 0; turns--) {
            int found = epoll_wait(ep, got, room, 0);
            CHECK(found >= 0 && found <= room);
            for (int i = 0; i < found; i++)
                more |= (long)got[i].events << (16 * got[i].data.u32);
            n += found;
        }
        note("epoll_wait", 2, room < 3 ? n > 0 : n, more);
        break;
    }
}

static void change(int end) {
    struct end *own = &ends[end];
    struct epoll_event event = {.data.u32 = end};
    static const uint32_t wishes[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLIN | EPOLLONESHOT, 0};
    int number = 1 + next() % 3, other;
    struct linger hard = {1, 0};
    event.events = wishes[next() % 5];
    errno = 0;
    switch (next() % 12) {
    case 10:
        note("pipe", 2, write(pipes[1], "p", 1), 0);
        break;
    case 11:
        note("pipe", 2, read(pipes[0], in, sizeof in), 1);
        break;
    case 0:
    case 1:
    case 2:
        other = next() % 3 == 0 ? EPOLL_CTL_DEL : own->in_epoll ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
        number = epoll_ctl(ep, other, own->fd, &event);
        note("epoll_ctl", end, number, other);
        if (number == 0)
            own->in_epoll = other != EPOLL_CTL_DEL;
        break;
    case 3:
    case 4:
        own->is_nonblocking = !own->is_nonblocking;
        note("F_SETFL", end, fcntl(own->fd, F_SETFL, own->is_nonblocking ? O_NONBLOCK : 0), 0);
        break;
    case 5:
        number = next() % 2;
        note("TCP_NODELAY", end, setsockopt(own->fd, IPPROTO_TCP, TCP_NODELAY, &number, sizeof number), 0);
        break;
    case 6:
        if (next() % 4 == 0)
            note("SO_RCVLOWAT", end, setsockopt(own->fd, SOL_SOCKET, SO_RCVLOWAT, &number, sizeof number) * 0, 0);
        break;
    case 7:
        if (next() % 4 == 0) {
            other = next() % 2 ? dup(own->fd) : fcntl(own->fd, F_DUPFD_CLOEXEC, 60);
            note("dup", end, other >= 0, 0);
            if (!own->in_epoll && next() % 2) {
                note("close", end, close(own->fd), 0);
                own->fd = other;
            } else {
                note("close", end, close(other), 0);
            }
        }
        break;
    case 8:
        if (next() % 4 == 0 && !own->has_shut) {
            settle(ends[!end].fd >= 0 ? !end : end);
            note("shutdown", end, shutdown(own->fd, SHUT_WR), 0);
            own->has_shut = 1;
        }
        break;
    case 9:
        if (next() % 8 == 0 && ends[!end].fd >= 0 && own->unread == 0 && !ends[!end].has_reset) {
            settle(!end);
            int resets = next() % 2;
            if (resets)
                setsockopt(own->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            note("close", end, close(own->fd), resets);
            own->fd = -1, own->has_reset = resets, own->in_epoll = 0;
        }
        break;
    default: break;
    }
}

static void run(uint64_t seed) {
    state = seed * 0x9E3779B97F4A7C15u + 1, digest = 0xCBF29CE484222325u;
    next();
    memset(ends, 0, sizeof ends);
    ends[0].fd = connection(0);
    ends[1].fd = connection(1);
    ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 2};
    CHECK(pipe2(pipes, O_NONBLOCK) == 0 && epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    /* Some connections are paired before the calls. */
    char byte = 'm';
    for (int turns = next() % 30; turns > 0; turns--) {
        int end = turns % 2;
        CHECK(send(ends[end].fd, &byte, 1, 0) == 1 && recv(ends[!end].fd, &byte, 1, 0) == 1);
    }
    for (int at = 0; at < STEPS; at++) {
        int end = next() % 2;
        uint64_t kind = next() % 8;
        if (ends[end].fd < 0)
            continue;
        if (kind < 3)
            send_some(end);
        else if (kind < 5)
            receive_some(end);
        else if (kind < 7)
            ask(end);
        else
            change(end);
        /* An error is reported once: after it, an end has none of the other's reasons left. */
        if (ends[end].fd >= 0 && ends[!end].has_reset)
            break;
    }
    for (int end = 0; end < 2; end++)
        if (ends[end].fd >= 0) {
            if (ends[!end].has_reset)
                for (int i = 0; i < 3; i++) {
                    settle(end);
                    struct pollfd entry = {.fd = ends[end].fd, .events = POLLIN | POLLRDHUP};
                    note("poll", end, poll(&entry, 1, 0), entry.revents & ~(i ? 0 : POLLOUT));
                    ssize_t n = i == 1 ? send(ends[end].fd, "x", 1, MSG_NOSIGNAL) : recv(ends[end].fd, in, sizeof in, MSG_DONTWAIT);
                    note(i == 1 ? "send" : "receive", end, n, 0);
                    if (n < 0)
                        break;
                }
            close(ends[end].fd);
        }
    close(ep), close(pipes[0]), close(pipes[1]);
    printf("seed %lu: %016lx\n", (unsigned long)seed, (unsigned long)digest);
}

int main(int argc, char **argv) {
    CHECK(argc > 3);
    uint64_t first = strtoull(argv[1], NULL, 10), count = strtoull(argv[2], NULL, 10);
    room = atoi(argv[3]);
    CHECK(room >= 1 && room <= 3);
    is_verbose = argc > 4;
    signal(SIGPIPE, SIG_IGN);
    alarm(300);
    open_port(1, "0");
    for (uint64_t seed = first; seed < first + count; seed++)
        run(seed);
    return 0;
}
