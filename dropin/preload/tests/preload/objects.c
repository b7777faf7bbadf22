/* Epoll objects with one connection, whose two ends are in this process: `objects`. Each byte is reported by all of them, also if
 * one consumes what the doorbell has received, and does not wait again. */
#include "peer.h"

enum { ROUNDS = 100, OBJECTS = 3 };

int main(void) {
    int near, far, pipes[2], objects[OBJECTS];
    char byte = 'x';
    alarm(100);
    open_port(1, "0");
    near = connection(0), far = connection(1);
    for (int turns = 0; turns < 60; turns++) {
        CHECK(send(near, &byte, 1, 0) == 1 && recv(far, &byte, 1, 0) == 1);
        CHECK(send(far, &byte, 1, 0) == 1 && recv(near, &byte, 1, 0) == 1);
    }
    CHECK(pipe(pipes) == 0);
    for (int i = 0; i < OBJECTS; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
        CHECK((objects[i] = epoll_create1(EPOLL_CLOEXEC)) >= 0);
        CHECK(epoll_ctl(objects[i], EPOLL_CTL_ADD, far, &event) == 0);
        /* With a member that only the kernel knows, a wait queries it for ready members. */
        CHECK(epoll_ctl(objects[i], EPOLL_CTL_ADD, pipes[0], &event) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct epoll_event got[4];
        /* All have slept since the last byte. */
        for (int i = 0; i < OBJECTS; i++)
            CHECK(epoll_wait(objects[i], got, 4, 2) == 0);
        CHECK(send(near, &byte, 1, 0) == 1);
        for (int i = 0; i < OBJECTS; i++) {
            int found = epoll_wait(objects[i], got, 4, 5000);
            if (found != 1) {
                fprintf(stderr, "round %d: object %d reported %d events\n", round, i, found);
                return 1;
            }
        }
        CHECK(recv(far, &byte, 1, 0) == 1);
    }
    printf("done\n");
    return 0;
}
