/* Calls every function of the header, as C and as C++. Usage: everything KV RPC STREAM, three addresses. KV is a store.
 * RPC echoes method 1, refuses method 2 with the code 42 and the text "no", and replies to method 3 after a second.
 * STREAM echoes. */
#include <farcall.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%d: %s; %s\n", __LINE__, #condition, farcall_error_message());        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static farcall_write value(const char *text) {
    farcall_write write;
    memset(&write, 0, sizeof write);
    write.value = text;
    write.value_len_bytes = strlen(text);
    return write;
}

static int holds(const farcall_item *item, const char *text) {
    return item->value_len_bytes == strlen(text) && memcmp(item->value, text, strlen(text)) == 0;
}

struct found {
    farcall_kv *kv;
    int hits, misses;
};

static void count(void *context, size_t place, const farcall_item *item) {
    struct found *found = (struct found *)context;
    farcall_item other;
    CHECK(farcall_kv_get(found->kv, "a", 1, &other) == FARCALL_BUSY);
    if (item) {
        CHECK(place == 0 ? holds(item, "1") : holds(item, "22"));
        found->hits++;
    } else {
        CHECK(place == 2);
        found->misses++;
    }
}

static void store(const char *address) {
    farcall_kv *kv;
    farcall_item item;
    farcall_write write;
    uint64_t version, later;
    farcall_bytes keys[3] = {{"a", 1}, {"b", 1}, {"none", 4}};
    struct found found;
    char long_key[251];

    CHECK(farcall_kv_connect(address, NULL, &kv) == FARCALL_OK);
    CHECK(farcall_kv_get(kv, "a", 1, &item) == FARCALL_NOT_FOUND);
    CHECK(farcall_error_executed(FARCALL_NOT_FOUND) == FARCALL_EXECUTED_YES);
    write = value("1");
    write.flags = 5;
    write.mode = FARCALL_PUT_MODE_REPLACE;
    CHECK(farcall_kv_put(kv, "a", 1, &write, &version) == FARCALL_NOT_STORED);
    write.mode = FARCALL_PUT_MODE_ADD;
    CHECK(farcall_kv_put(kv, "a", 1, &write, &version) == FARCALL_OK);
    CHECK(farcall_kv_get(kv, "a", 1, &item) == FARCALL_OK);
    CHECK(holds(&item, "1") && item.flags == 5 && item.version == version && item.reserved == 0);
    write = value("22");
    CHECK(farcall_kv_put(kv, "b", 1, &write, NULL) == FARCALL_OK);

    found.kv = kv;
    found.hits = found.misses = 0;
    CHECK(farcall_kv_get_many(kv, keys, 3, count, &found) == FARCALL_OK);
    CHECK(found.hits == 2 && found.misses == 1);
    CHECK(farcall_kv_get_many(kv, NULL, 0, count, &found) == FARCALL_OK);

    CHECK(farcall_kv_compare_and_swap(kv, "a", 1, version + 1, &write, &later) == FARCALL_OTHER_VERSION);
    CHECK(farcall_kv_compare_and_swap(kv, "a", 1, version, &write, &later) == FARCALL_OK);
    CHECK(later != version);
    CHECK(farcall_kv_delete(kv, "a", 1, version) == FARCALL_OTHER_VERSION);
    CHECK(farcall_kv_delete(kv, "a", 1, later) == FARCALL_OK);
    CHECK(farcall_kv_delete(kv, "a", 1, 0) == FARCALL_NOT_FOUND);
    CHECK(farcall_kv_touch(kv, "a", 1, 5) == FARCALL_NOT_FOUND);
    CHECK(farcall_kv_touch(kv, "b", 1, 1) == FARCALL_OK);
    while (farcall_kv_get(kv, "b", 1, &item) == FARCALL_OK)
        poll(NULL, 0, 5);
    write.time_to_live_ms = 1;
    CHECK(farcall_kv_put(kv, "b", 1, &write, NULL) == FARCALL_OK);
    while (farcall_kv_get(kv, "b", 1, &item) == FARCALL_OK)
        poll(NULL, 0, 5);

    memset(long_key, 'k', sizeof long_key);
    CHECK(farcall_kv_get(kv, long_key, 251, &item) == FARCALL_KEY);
    CHECK(farcall_kv_get(kv, NULL, 0, &item) == FARCALL_KEY);
    CHECK(farcall_kv_get(kv, NULL, 3, &item) == FARCALL_INVALID);
    CHECK(farcall_kv_get(kv, "a", (size_t)-1, &item) == FARCALL_INVALID);
    CHECK(farcall_kv_get(kv, "a", 1, NULL) == FARCALL_INVALID);
    CHECK(farcall_kv_get(kv, "a", 1, (farcall_item *)((char *)&item + 1)) == FARCALL_INVALID);
    CHECK(strstr(farcall_error_message(), "aligned") != NULL);
    CHECK(farcall_kv_get(NULL, "a", 1, &item) == FARCALL_INVALID);
    CHECK(farcall_kv_get_many(kv, keys, (size_t)-1, count, &found) == FARCALL_INVALID);
    CHECK(farcall_kv_get_many(kv, keys, 3, NULL, &found) == FARCALL_INVALID);
    CHECK(farcall_kv_put(kv, "a", 1, NULL, NULL) == FARCALL_INVALID);
    write.mode = 9;
    CHECK(farcall_kv_put(kv, "a", 1, &write, NULL) == FARCALL_INVALID);
    farcall_kv_close(kv);
    farcall_kv_close(NULL);
}

static void handle(void *context, const farcall_call *call, farcall_reply *reply) {
    CHECK(strcmp((const char *)context, "mine") == 0 && call->reserved == 0);
    if (call->method == 1) {
        CHECK(farcall_reply_append(reply, "<", 1) == FARCALL_OK);
        CHECK(farcall_reply_append(reply, call->request, call->request_len_bytes) == FARCALL_OK);
    } else {
        CHECK(farcall_reply_append(NULL, "", 0) == FARCALL_INVALID);
        CHECK(farcall_reply_refuse(reply, 40000, "") == FARCALL_INVALID);
        CHECK(farcall_reply_refuse(reply, 42, "no") == FARCALL_OK);
    }
}

/* Calls a server whose method 1 echoes with `before` in front, and whose method 2 refuses: that of `handle`, or RPC. */
static void calls(const char *address, const char *before) {
    farcall_rpc *rpc;
    const void *reply;
    size_t len_bytes, rest = strlen(before);

    CHECK(farcall_rpc_connect(address, NULL, &rpc) == FARCALL_OK);
    CHECK(farcall_rpc_call(rpc, 1, "hello", 5, 0, &reply, &len_bytes) == FARCALL_OK);
    CHECK(len_bytes == rest + 5 && memcmp((const char *)reply + rest, "hello", 5) == 0);
    CHECK(farcall_rpc_call(rpc, 1, NULL, 0, 0, &reply, &len_bytes) == FARCALL_OK && len_bytes == rest);
    CHECK(farcall_rpc_call(rpc, 2, "x", 1, 0, &reply, &len_bytes) == FARCALL_APPLICATION);
    CHECK(farcall_error_application_code() == 42);
    CHECK(strstr(farcall_error_message(), "no") != NULL);
    CHECK(farcall_error_executed(FARCALL_APPLICATION) == FARCALL_EXECUTED_YES);
    CHECK(farcall_rpc_call(rpc, 1, "x", 1, 0, NULL, &len_bytes) == FARCALL_INVALID);
    CHECK(farcall_error_application_code() == 0);
    farcall_rpc_close(rpc);
}

static void server(void) {
    char mine[] = "mine", address[64];
    farcall_server *server;
    farcall_rpc *rpc;
    CHECK(farcall_server_start("127.0.0.1:0", NULL, NULL, mine, &server) == FARCALL_INVALID && !server);
    CHECK(farcall_server_start("127.0.0.1:0", NULL, handle, mine, &server) == FARCALL_OK);
    CHECK(farcall_server_address(server, address, 3) == FARCALL_INVALID);
    CHECK(farcall_server_address(server, address, sizeof address) == FARCALL_OK);
    calls(address, "<");
    farcall_server_stop(server);
    farcall_server_stop(NULL);
    CHECK(farcall_rpc_connect(address, NULL, &rpc) == FARCALL_UNREACHABLE && !rpc);
    CHECK(farcall_error_executed(FARCALL_UNREACHABLE) == FARCALL_EXECUTED_NO);
}

static void deadline(const char *address) {
    farcall_rpc *rpc;
    farcall_options options;
    const void *reply;
    size_t len_bytes;
    int code;
    CHECK(farcall_options_init(&options, sizeof options) == FARCALL_OK);
    options.provider = "softnic";
    options.preset = "server-reply";
    options.call_timeout_us = 60000000;
    CHECK(farcall_rpc_connect(address, &options, &rpc) == FARCALL_OK);
    code = farcall_rpc_call(rpc, 3, NULL, 0, 1000, &reply, &len_bytes);
    CHECK(code == FARCALL_OUTCOME_UNKNOWN || code == FARCALL_DEADLINE_EXCEEDED);
    CHECK(farcall_error_executed(FARCALL_OUTCOME_UNKNOWN) == FARCALL_EXECUTED_UNKNOWN);
    CHECK(farcall_rpc_call(rpc, 1, "again", 5, 0, &reply, &len_bytes) == FARCALL_OK && len_bytes == 5);
    farcall_rpc_close(rpc);
}

static void wait_on(int fd) {
    struct pollfd entry;
    entry.fd = fd;
    entry.events = POLLIN;
    CHECK(poll(&entry, 1, 30000) == 1);
}

static void echo(const char *address) {
    farcall_stream *stream;
    char bytes[16], peer[64];
    size_t len_bytes;
    int fd;
    CHECK(farcall_stream_connect(address, NULL, &stream) == FARCALL_OK);
    CHECK(farcall_stream_peer_address(stream, peer, sizeof peer) == FARCALL_OK && !strcmp(peer, address));
    CHECK(farcall_stream_path(stream, peer, sizeof peer) == FARCALL_OK && !strcmp(peer, "verbs"));
    CHECK(farcall_stream_path(stream, peer, 5) == FARCALL_INVALID);
    CHECK(farcall_stream_fd(stream, &fd) == FARCALL_INVALID);
    CHECK(farcall_stream_set_timeouts(stream, 1000, 0) == FARCALL_OK);
    CHECK(farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes) == FARCALL_TIMED_OUT);
    CHECK(farcall_stream_set_timeouts(stream, 0, 0) == FARCALL_OK);
    CHECK(farcall_stream_read(stream, NULL, 3, &len_bytes) == FARCALL_INVALID);
    CHECK(farcall_stream_read(stream, bytes, 0, &len_bytes) == FARCALL_OK && len_bytes == 0);
    CHECK(farcall_stream_write(stream, "ping", 4, &len_bytes) == FARCALL_OK && len_bytes == 4);
    CHECK(farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes) == FARCALL_OK);
    CHECK(len_bytes >= 1 && len_bytes <= 4 && memcmp(bytes, "ping", len_bytes) == 0);
    CHECK(farcall_stream_shutdown(stream) == FARCALL_OK);
    CHECK(farcall_stream_write(stream, "more", 4, &len_bytes) == FARCALL_BROKEN_PIPE);
    do
        CHECK(farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes) == FARCALL_OK);
    while (len_bytes > 0);
    CHECK(farcall_stream_close(stream, 30000000) == FARCALL_OK);
    CHECK(farcall_stream_close(NULL, 0) == FARCALL_OK);
    farcall_stream_reset(NULL);
}

/* Runs in a thread of its own, because connecting waits until another thread accepts. */
static void *peer(void *address) {
    farcall_stream *stream;
    char bytes[16];
    size_t len_bytes;
    CHECK(farcall_stream_connect((const char *)address, NULL, &stream) == FARCALL_OK);
    CHECK(farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes) == FARCALL_OK && len_bytes == 2);
    CHECK(farcall_stream_write(stream, "hi", 2, &len_bytes) == FARCALL_OK);
    CHECK(farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes) == FARCALL_RESET);
    farcall_stream_reset(stream);
    return NULL;
}

static void listen_and_accept(void) {
    farcall_listener *listener;
    farcall_stream *stream;
    farcall_options options;
    char address[64], bytes[16];
    size_t len_bytes;
    int fd, code, readable, writable;
    pthread_t thread;
    CHECK(farcall_options_init(&options, sizeof options) == FARCALL_OK);
    options.nonblocking = 1;
    CHECK(farcall_listen("127.0.0.1:0", &options, &listener) == FARCALL_OK);
    CHECK(farcall_listener_address(listener, address, sizeof address) == FARCALL_OK);
    CHECK(farcall_listener_fd(listener, &fd) == FARCALL_OK);
    CHECK(farcall_listener_accept(listener, &stream) == FARCALL_WOULD_BLOCK && !stream);
    CHECK(pthread_create(&thread, NULL, peer, address) == 0);
    while ((code = farcall_listener_accept(listener, &stream)) == FARCALL_WOULD_BLOCK)
        wait_on(fd);
    CHECK(code == FARCALL_OK);
    CHECK(farcall_stream_fd(stream, &fd) == FARCALL_OK);
    while ((code = farcall_stream_write(stream, "ho", 2, &len_bytes)) == FARCALL_WOULD_BLOCK)
        wait_on(fd);
    CHECK(code == FARCALL_OK && len_bytes == 2);
    CHECK(farcall_stream_ready(stream, &readable, NULL) == FARCALL_INVALID);
    CHECK(farcall_stream_ready(stream, &readable, &writable) == FARCALL_OK);
    CHECK((readable == 0 || readable == 1) && writable == 1);
    while ((code = farcall_stream_read(stream, bytes, sizeof bytes, &len_bytes)) == FARCALL_WOULD_BLOCK)
        wait_on(fd);
    CHECK(code == FARCALL_OK && len_bytes == 2 && memcmp(bytes, "hi", 2) == 0);
    farcall_stream_reset(stream);
    CHECK(pthread_join(thread, NULL) == 0);
    farcall_listener_close(listener);
    farcall_listener_close(NULL);
}

static void options(const char *address) {
    farcall_options options;
    farcall_kv *kv;
    memset(&options, 0, sizeof options);
    CHECK(farcall_options_init(&options, sizeof options - 1) == FARCALL_INVALID);
    CHECK(farcall_options_init(NULL, sizeof options) == FARCALL_INVALID);
    CHECK(farcall_kv_connect(address, &options, &kv) == FARCALL_INVALID && !kv);
    CHECK(farcall_options_init(&options, sizeof options) == FARCALL_OK);
    options.provider = "none";
    CHECK(farcall_kv_connect(address, &options, &kv) == FARCALL_INVALID);
    CHECK(strstr(farcall_error_message(), "softnic") != NULL);
    options.provider = NULL;
    options.preset = "none";
    CHECK(farcall_kv_connect(address, &options, &kv) == FARCALL_INVALID);
    options.preset = "\xff";
    CHECK(farcall_kv_connect(address, &options, &kv) == FARCALL_INVALID);
    CHECK(farcall_kv_connect(NULL, NULL, &kv) == FARCALL_INVALID);
    CHECK(farcall_kv_connect(address, NULL, NULL) == FARCALL_INVALID);
    CHECK(strlen(farcall_error_text(FARCALL_OK)) > 0 && strlen(farcall_error_text(-1)) > 0);
    CHECK(farcall_error_executed(-1) == FARCALL_EXECUTED_UNKNOWN);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    CHECK(farcall_version() == FARCALL_VERSION);
    listen_and_accept();
    options(argv[1]);
    store(argv[1]);
    calls(argv[2], "");
    deadline(argv[2]);
    server();
    echo(argv[3]);
    puts("ok");
    return 0;
}
