/* Waits for events, each of which is there: `waits COUNT only|pipe`. Both ends of two connections are in this process; an
 * epoll object has one end of each, and a pipe if it is to. */
#include "peer.h"

int main(int argc, char **argv) {
    CHECK(argc > 2);
    int near[2], far[2], pipes[2], ep = epoll_create1(EPOLL_CLOEXEC);
    char byte = 'x';
    alarm(100);
    open_port(1, "0");
    CHECK(pipe(pipes) == 0);
    struct epoll_event event = {.events = EPOLLIN}, got[4];
    for (int i = 0; i < 2; i++) {
        near[i] = connection(0), far[i] = connection(1);
        for (int turns = 0; turns < 60; turns++) {
            CHECK(send(near[i], &byte, 1, 0) == 1 && recv(far[i], &byte, 1, 0) == 1);
            CHECK(send(far[i], &byte, 1, 0) == 1 && recv(near[i], &byte, 1, 0) == 1);
        }
        event.data.u32 = i;
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, far[i], &event) == 0);
    }
    if (argv[2][0] == 'p')
        CHECK(epoll_ctl(ep, EPOLL_CTL_ADD, pipes[0], &event) == 0);
    for (int count = atoi(argv[1]); count > 0; count--) {
        int i = count / 3 % 2;
        CHECK(send(near[i], &byte, 1, 0) == 1);
        CHECK(epoll_wait(ep, got, 4, -1) == 1 && got[0].data.u32 == (uint32_t)i);
        CHECK(recv(far[i], &byte, 1, 0) == 1);
    }
    return 0;
}
