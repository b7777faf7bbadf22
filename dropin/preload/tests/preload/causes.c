/* A client that sends on one connection, then on another: `causes server ROOM`, `causes client PORT ROOM`. The first one stays
 * on TCP, or both have moved. The server, whose waits have room for ROOM events and more, is never notified of the second
 * one before the first. */
#include "peer.h"

enum { ROUNDS = 3000 };

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int is_server = strcmp(argv[1], "server") == 0, one = 1, fds[3];
    char byte = 'x';
    alarm(300);
    open_port(is_server, argv[2]);
    fds[0] = connection(is_server);
    /* Only the kernel stamps bytes. */
    if (is_server)
        CHECK(setsockopt(fds[0], SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one) == 0);
    fds[1] = meet(is_server), fds[2] = meet(is_server);
    int ep = epoll_create1(EPOLL_CLOEXEC), least_room = atoi(argv[argc - 1]);
    for (int i = 0; i < 3; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &event) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        int first = round % 3 == 0 ? 1 : 0, second = round % 3 == 2 ? 1 : 2;
        if (!is_server) {
            /* The server is asleep, about to sleep, or polls for events. */
            for (volatile int turns = round * 37 % 20000; turns > 0;)
                turns--;
            CHECK(send(fds[first], &byte, 1, 0) == 1 && send(fds[second], &byte, 1, 0) == 1);
            CHECK(recv(fds[second], &byte, 1, 0) == 1);
            continue;
        }
        int got[3] = {0}, method = round / 3 % 4;
        while (!got[first] || !got[second]) {
            struct epoll_event events[8];
            struct pollfd entries[3];
            int now[3] = {0}, n;
            if (method < 3) {
                CHECK((n = epoll_wait(ep, events, least_room + method, -1)) > 0);
                for (int i = 0; i < n; i++)
                    now[events[i].data.u32] = 1;
            } else {
                for (int i = 0; i < 3; i++)
                    entries[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
                CHECK(poll(entries, 3, -1) > 0);
                for (int i = 0; i < 3; i++)
                    now[i] = entries[i].revents != 0;
            }
            if (now[second] && !now[first] && !got[first]) {
                fprintf(stderr, "round %d, method %d: the effect was reported without its cause\n", round, method);
                return 1;
            }
            for (int i = 0; i < 3; i++)
                if (now[i] && !got[i])
                    CHECK(recv(fds[i], &byte, 1, 0) == 1 && (got[i] = 1));
        }
        /* The kernel's list keeps the place of a member that was read since, until a wait passes it. */
        struct epoll_event none[8];
        CHECK(epoll_wait(ep, none, least_room, 0) == 0);
        CHECK(send(fds[second], &byte, 1, 0) == 1);
    }
    printf("done\n");
    return 0;
}
