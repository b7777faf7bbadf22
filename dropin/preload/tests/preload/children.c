/* Paired connections reach other processes while their maker keeps them: `children server`, `children client PORT`.
 * The server writes "A", a child "B", the server "C". */
#include "peer.h"
#include <sched.h>
#include <spawn.h>

extern char **environ;
extern int plain_fork(void) __asm__("_Fork");

static int wait_for(pid_t pid) {
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int write_b(void *fd) {
    _exit(write(*(int *)fd, "B", 1) != 1);
}

/* A descriptor of this process's children, to which a connection was sent before. */
static void receive_and_write(int from) {
    char byte, room[CMSG_SPACE(sizeof(int))] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(from, &message, 0) != 1)
        _exit(2);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    write_b(&fd);
}

static void send_to(int to, int fd) {
    char room[CMSG_SPACE(sizeof fd)] = "";
    struct iovec part = {"f", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(to, &message, 0) == 1);
}

static void by_child(int fd, const char *method, int pair, pid_t early) {
    static char stack[65536];
    char command[64], *arguments[] = {"sh", "-c", "printf B", NULL};
    pid_t pid = -1;
    if (!strcmp(method, "spawn")) {
        posix_spawn_file_actions_t actions;
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 1) == 0);
        CHECK(posix_spawn(&pid, "/bin/sh", &actions, NULL, arguments, environ) == 0 && wait_for(pid) == 0);
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    } else if (!strcmp(method, "vfork")) {
        pid = vfork();
        if (pid == 0) {
            dup2(fd, 1);
            execv("/bin/sh", arguments);
            _exit(3);
        }
        CHECK(wait_for(pid) == 0);
    } else if (!strcmp(method, "system")) {
        CHECK(fcntl(fd, F_SETFD, 0) == 0 && snprintf(command, sizeof command, "printf B >&%d", fd) > 0);
        CHECK(system(command) == 0);
    } else if (!strcmp(method, "popen")) {
        CHECK(fcntl(fd, F_SETFD, 0) == 0 && snprintf(command, sizeof command, "printf B >&%d", fd) > 0);
        FILE *pipe = popen(command, "r");
        CHECK(pipe != NULL && pclose(pipe) == 0);
    } else if (!strcmp(method, "fork")) {
        pid = fork();
        if (pid == 0) {
            dup2(fd, 1);
            execl("/bin/sh", "sh", "-c", "printf B", NULL);
            _exit(3);
        }
        CHECK(wait_for(pid) == 0);
    } else if (!strcmp(method, "_Fork")) {
        pid = plain_fork();
        if (pid == 0)
            write_b(&fd);
        CHECK(wait_for(pid) == 0);
    } else if (!strcmp(method, "clone")) {
        pid = clone(write_b, stack + sizeof stack, SIGCHLD, &fd);
        CHECK(pid > 0 && wait_for(pid) == 0);
    } else {
        CHECK(!strcmp(method, "message"));
        send_to(pair, fd);
        CHECK(wait_for(early) == 0);
    }
}

static const char *methods[] = {"spawn", "vfork", "system", "popen", "fork", "_Fork", "clone", "message"};

int main(int argc, char **argv) {
    CHECK(argc > 1);
    int is_server = !strcmp(argv[1], "server");
    signal(SIGPIPE, SIG_IGN);
    alarm(500);
    open_port(is_server, argc > 2 ? argv[2] : "0");
    /* By which the client learns that all is written. */
    int control = connection(is_server);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        int pair[2] = {-1, -1};
        pid_t early = -1;
        if (is_server && !strcmp(methods[i], "message")) {
            /* A process that does not have the connection by inheritance. */
            CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
            early = fork();
            CHECK(early >= 0);
            if (early == 0)
                receive_and_write(pair[1]);
        }
        int fd = meet(is_server);
        char got[4] = "";
        if (is_server) {
            printf("%s\n", methods[i]);
            fflush(stdout);
            CHECK(write(fd, "A", 1) == 1);
            by_child(fd, methods[i], pair[0], early);
            CHECK(write(fd, "C", 1) == 1);
            CHECK(write(control, "w", 1) == 1);
            CHECK(read(fd, got, 1) == 1);
        } else {
            CHECK(read(control, got, 1) == 1);
            CHECK(recv(fd, got, 3, MSG_WAITALL) == 3);
            if (strcmp(got, "ABC")) {
                fprintf(stderr, "%s: %s\n", methods[i], got);
                return 1;
            }
            CHECK(write(fd, "x", 1) == 1);
        }
        CHECK(close(fd) == 0);
    }
    printf("done\n");
    return 0;
}
