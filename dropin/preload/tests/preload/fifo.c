/* Events that epoll_wait reports when more members are ready than it has capacity for: `fifo OTHERS ROOM...` waits with capacity for
 * so many events, in turn, for connections and as many eventfds. Both ends of the connections are in this process.
 *
 * The kernel keeps a list: a member that becomes ready joins at its end, and so does a level-triggered one that was reported.
 * A member has its place from one of two times on: when it became ready, or (if it was not ready for a while, which the
 * kernel may not have noticed) when it joined. None may be reported that is behind a ready one which is not. Waits for one
 * event at a time report exactly what the list says. */
#include "peer.h"
#include <sys/eventfd.h>

enum { MOVED = 6, MEMBERS_MAX = 256, STEPS = 5000, FEW_EVENTS = 16, ORDERED_WAITS = 256 };

static uint64_t state = 88172645463325252u;
static uint64_t next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

struct member {
    int fd, peer, is_listed, is_off;
    uint32_t wish;
    long unread;
    /* First and last time of which its place may be. */
    long joined, ready;
};
static struct member members[MEMBERS_MAX];
static int ep, count, is_single, is_ordered;
/* Number of waits, and of those for which the order is kept. */
static int waits, ordered_waits;
static int list[MEMBERS_MAX], list_len;
static long now;

static int is_moved(int at) {
    return at < MOVED;
}

static int is_ready(int at) {
    return members[at].is_listed && members[at].unread && !members[at].is_off;
}

static void join(int at) {
    struct member *member = &members[at];
    now++;
    if (member->is_off)
        return;
    if (!member->is_listed) {
        member->is_listed = 1, member->joined = member->ready = now;
        if (is_single)
            list[list_len++] = at;
    } else if (member->unread == 1) {
        member->ready = now;
    }
}

/* Removes the first member, up to one that is ready. */
static int next_listed(void) {
    while (list_len > 0) {
        int at = list[0];
        memmove(list, list + 1, --list_len * sizeof *list);
        if (is_ready(at))
            return at;
        members[at].is_listed = 0;
    }
    return -1;
}

/* Makes a member ready, and waits until its end has what was sent: then results on plain TCP do not depend on time. */
static void make_ready(int at) {
    struct member *member = &members[at];
    uint64_t one = 1;
    member->unread++;
    if (is_moved(at)) {
        CHECK(send(member->peer, "x", 1, 0) == 1);
        for (int n = 0; n < member->unread;)
            CHECK(ioctl(member->fd, FIONREAD, &n) == 0);
    } else {
        CHECK(write(member->fd, &one, sizeof one) == sizeof one);
    }
    join(at);
}

static void drain(int at) {
    struct member *member = &members[at];
    char bytes[1000];
    uint64_t number;
    if (!member->unread)
        return;
    if (is_moved(at))
        CHECK(recv(member->fd, bytes, sizeof bytes, 0) == member->unread);
    else
        CHECK(read(member->fd, &number, sizeof number) == sizeof number);
    member->unread = 0;
}

static void change(int at, uint32_t wish) {
    struct epoll_event event = {.events = wish, .data.u32 = at};
    CHECK(epoll_ctl(ep, EPOLL_CTL_MOD, members[at].fd, &event) == 0);
    members[at].wish = wish, members[at].is_off = 0;
    if (members[at].unread && !members[at].is_listed)
        join(at);
}

/* Takes a member out and puts it in again. */
static void put_again(int at) {
    struct epoll_event event = {.events = members[at].wish, .data.u32 = at};
    CHECK(epoll_ctl(ep, EPOLL_CTL_DEL, members[at].fd, NULL) == 0);
    CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, members[at].fd, &event) == 0);
    for (int i = 0; i < list_len; i++)
        if (list[i] == at)
            memmove(list + i, list + i + 1, (--list_len - i) * sizeof *list);
    members[at].is_listed = members[at].is_off = 0;
    if (members[at].unread)
        join(at);
}

static void fail(const char *what, const struct epoll_event *got, int n, int room) {
    fprintf(stderr, "time %ld, room %d: %s; reported", now, room, what);
    for (int i = 0; i < n; i++)
        fprintf(stderr, " %u", got[i].data.u32);
    fprintf(stderr, "; ready");
    for (int at = 0; at < count; at++)
        if (is_ready(at))
            fprintf(stderr, " %s%d:%ld..%ld", is_moved(at) ? "moved " : "", at, members[at].joined, members[at].ready);
    fprintf(stderr, "\n");
    exit(1);
}

/* Whether a member must not be reported before another one. */
static int is_behind(int at, int other) {
    /* Rings that are polled do not show which of two was ready first. */
    if (!ordered_waits && !(is_moved(at) && !is_moved(other)))
        return 0;
    return members[at].joined > members[other].ready;
}

/* Rings that were polled may have joined the list behind all others. */
static void begin_order(void) {
    now++;
    for (int at = 0; at < count; at++)
        if (is_moved(at) && is_ready(at))
            members[at].ready = now;
}

static void wait_once(int room) {
    static struct epoll_event got[MEMBERS_MAX];
    int is_reported[MEMBERS_MAX] = {0}, ready = 0;
    for (int at = 0; at < count; at++)
        ready += is_ready(at);
    if (room < FEW_EVENTS && room < count) {
        if (!ordered_waits && waits)
            begin_order();
        ordered_waits = ORDERED_WAITS;
    }
    waits++;
    int n = epoll_wait(ep, got, room, ready && next() % 2 ? -1 : 0);
    if (n != (ready < room ? ready : room))
        fail("number of events", got, n, room);
    for (int i = 0; i < n; i++) {
        int at = got[i].data.u32;
        if (got[i].events != EPOLLIN || !is_ready(at) || is_reported[at]++)
            fail("event", got, n, room);
        for (int j = 0; j < i && is_ordered; j++)
            if (is_behind(got[j].data.u32, at))
                fail("order of events", got, n, room);
    }
    for (int i = 0; i < n; i++)
        for (int at = 0; at < count; at++)
            if (is_ready(at) && !is_reported[at] && is_behind(got[i].data.u32, at))
                fail("order of waits", got, n, room);
    if (is_single && next_listed() != (n ? (int)got[0].data.u32 : -1))
        fail("place", got, n, room);
    now++;
    for (int i = 0; i < n; i++) {
        struct member *member = &members[got[i].data.u32];
        member->is_off = !!(member->wish & EPOLLONESHOT);
        member->is_listed = !(member->wish & (EPOLLONESHOT | EPOLLET));
        member->joined = member->ready = now;
        if (is_single && member->is_listed)
            list[list_len++] = got[i].data.u32;
    }
    int is_left_out = 0;
    for (int at = 0; at < count; at++)
        is_left_out |= is_moved(at) && is_ready(at) && !is_reported[at];
    if (!ordered_waits && is_left_out)
        begin_order(), ordered_waits = ORDERED_WAITS;
    else if (ordered_waits && n < room)
        ordered_waits--;
    /* Busy members stay ready. */
    for (int i = 0; i < n; i++)
        if (next() % 2)
            drain(got[i].data.u32);
}

static void open_member(int at) {
    struct member *member = &members[at];
    char byte = 'x';
    if (!is_moved(at)) {
        CHECK((member->fd = eventfd(0, EFD_CLOEXEC)) >= 0);
        return;
    }
    member->peer = connection(0), member->fd = connection(1);
    for (int turns = 0; turns < 60; turns++) {
        CHECK(send(member->peer, &byte, 1, 0) == 1 && recv(member->fd, &byte, 1, 0) == 1);
        CHECK(send(member->fd, &byte, 1, 0) == 1 && recv(member->peer, &byte, 1, 0) == 1);
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int rooms = argc - 2;
    count = MOVED + atoi(argv[1]);
    /* One wait reports moved connections last until the order is kept. */
    is_ordered = atoi(argv[2]) < FEW_EVENTS && atoi(argv[2]) < count;
    is_single = rooms == 1 && atoi(argv[2]) == 1;
    alarm(300);
    open_port(1, "0");
    ep = epoll_create1(EPOLL_CLOEXEC);
    for (int at = 0; at < count; at++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = at};
        open_member(at);
        members[at].wish = EPOLLIN;
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, members[at].fd, &event) == 0);
    }
    /* All are ready, those that moved last, and many stay so: none starves. */
    for (int at = count; at-- > 0;)
        make_ready(at);
    for (int step = 0; step < 4 * count; step++)
        wait_once(atoi(argv[2 + step % rooms]));
    for (int at = 0; at < count; at++)
        drain(at);
    /* A doorbell takes a few hundred bytes. */
    for (int round = 0; round < 1000; round++) {
        put_again(0);
        make_ready(0);
        wait_once(atoi(argv[2]));
        drain(0);
    }
    static const uint32_t wishes[] = {EPOLLIN, EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
    for (int step = 0; step < STEPS; step++) {
        int at = next() % count;
        uint64_t kind = next() % 16;
        if (kind < 7 && members[at].unread < 900)
            make_ready(at);
        else if (kind < 8)
            drain(at);
        else if (kind < 9)
            put_again(at);
        else if (kind < 11)
            change(at, wishes[next() % 4]);
        else
            wait_once(atoi(argv[2 + next() % rooms]));
    }
    printf("done\n");
    return 0;
}
