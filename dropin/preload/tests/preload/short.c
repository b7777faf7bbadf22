/* Connections that end after a byte each way, both ends in this process: `short COUNT`. */
#include "peer.h"

int main(int argc, char **argv) {
    CHECK(argc > 1);
    open_port(1, "0");
    for (int count = atoi(argv[1]); count > 0; count--) {
        char byte = 'x';
        int near = connection(0), far = connection(1);
        CHECK(send(near, &byte, 1, 0) == 1 && recv(far, &byte, 1, 0) == 1);
        CHECK(send(far, &byte, 1, 0) == 1 && recv(near, &byte, 1, 0) == 1);
        CHECK(close(far) == 0 && close(near) == 0);
    }
    return 0;
}
