/* Farcall: remote calls, a key-value store and byte streams over RDMA verbs.
 *
 * Made of the sources of the library: change those, then run
 * FARCALL_WRITE_HEADER=1 cargo test -p farcall-capi --test header.
 *
 * Functions that can fail return a farcall_code, FARCALL_OK or another; farcall_error_message has the words. Objects
 * are opaque, and of use to one thread at a time; different objects are independent. Null and misaligned pointers are
 * FARCALL_INVALID. Lengths are in bytes, times in the unit of their name. Texts are UTF-8 and end with a zero byte. A
 * forked child uses none of its parent's objects. */

#ifndef FARCALL_H
#define FARCALL_H

#include <stddef.h>
#include <stdint.h>

// The version of this header: major << 16 | minor << 8 | patch.
#define FARCALL_VERSION 256

// What became of a function that was called. Numbers never change their meaning; later versions add some.
typedef enum {
  // Done.
  FARCALL_OK = 0,
  // An argument cannot be right: null, misaligned, out of range. Nothing was done.
  FARCALL_INVALID = 1,
  // Another thread is inside of a function with the same object. Nothing was done.
  FARCALL_BUSY = 2,
  // The library failed in itself: a mistake of ours. The object can only be closed.
  FARCALL_PANICKED = 3,
  // The system gives no thread, descriptor or memory.
  FARCALL_SYSTEM = 4,
  // The device cannot be used.
  FARCALL_DEVICE = 5,
  // Nobody listens at the address, or nobody answers in time.
  FARCALL_UNREACHABLE = 6,
  // The other end refuses, or is none of ours.
  FARCALL_REFUSED = 7,
  // The deadline passed before the call was sent. It was not executed.
  FARCALL_DEADLINE_EXCEEDED = 8,
  // The connection is lost and the call was never sent.
  FARCALL_NOT_SENT = 9,
  // The call was sent, and there is no way to know whether it was executed.
  FARCALL_OUTCOME_UNKNOWN = 10,
  // The server did not execute the call: it is shutting down, or has no room.
  FARCALL_NOT_EXECUTED = 11,
  // The call was executed, and its result cannot be had.
  FARCALL_RESULT_LOST = 12,
  // The handler refused the call, with a code of its own.
  FARCALL_APPLICATION = 13,
  // The request or the value is longer than the server takes. It was not executed.
  FARCALL_TOO_LARGE = 14,
  // The key cannot be one: empty, or longer than 250 bytes.
  FARCALL_KEY = 15,
  // The key has no item.
  FARCALL_NOT_FOUND = 16,
  // The condition of the write did not hold. Nothing was changed.
  FARCALL_NOT_STORED = 17,
  // The item has another version. Nothing was changed.
  FARCALL_OTHER_VERSION = 18,
  // The value is no decimal number. Nothing was changed.
  FARCALL_NOT_A_NUMBER = 19,
  // The store is full and does not evict. Nothing was changed.
  FARCALL_STORE_FULL = 20,
  // The server was restarted with other partitions: connect again.
  FARCALL_MOVED = 21,
  // A function that does not wait would have to.
  FARCALL_WOULD_BLOCK = 22,
  // The time is over. Nothing was read, written or accepted.
  FARCALL_TIMED_OUT = 23,
  // The stream broke: the other end is gone, and with it what had not arrived.
  FARCALL_RESET = 24,
  // This end has ended its stream, or nobody reads it any more.
  FARCALL_BROKEN_PIPE = 25,
} farcall_code;

// Whether what was asked for was executed.
typedef enum {
  // It was not and will not be: asking again is safe.
  FARCALL_EXECUTED_NO = 0,
  // It was, once.
  FARCALL_EXECUTED_YES = 1,
  // It may have been, once at most.
  FARCALL_EXECUTED_UNKNOWN = 2,
} farcall_executed;

// The condition and the place of a write.
typedef enum {
  // Stores the value, whatever is there.
  FARCALL_PUT_MODE_SET = 0,
  // Only if the key has no item.
  FARCALL_PUT_MODE_ADD = 1,
  // Only if the key has an item.
  FARCALL_PUT_MODE_REPLACE = 2,
  // Behind the value that is there.
  FARCALL_PUT_MODE_APPEND = 3,
  // In front of the value that is there.
  FARCALL_PUT_MODE_PREPEND = 4,
} farcall_put_mode;

// A client of a key-value store, with a connection to each of its partitions. One thread at a time: another one gets
// FARCALL_BUSY.
typedef struct farcall_kv farcall_kv;

// Accepts byte streams. One thread at a time: another one gets FARCALL_BUSY.
typedef struct farcall_listener farcall_listener;

// Where a handler writes the result of its call. Lent until the handler returns.
typedef struct farcall_reply farcall_reply;

// A client of remote calls: a connection to one server thread. One thread at a time: another one gets FARCALL_BUSY.
typedef struct farcall_rpc farcall_rpc;

// A running server of remote calls.
typedef struct farcall_server farcall_server;

// A byte stream: reliable, ordered bytes in both directions. One thread at a time: another one gets FARCALL_BUSY.
typedef struct farcall_stream farcall_stream;

// How something is opened. Where options are asked for, null stands for the usual ones.
//
// Always set by farcall_options_init first: later versions append fields. The library reads options during the call
// only.
typedef struct {
  // sizeof(farcall_options); set by farcall_options_init.
  size_t options_len_bytes;
  // "softnic", "ibv" or "auto"; null: "auto".
  const char *provider;
  // A device of libibverbs; null: the first with an active port.
  const char *device;
  // A preset for clients of remote calls and stores; null: the client chooses.
  const char *preset;
  // How long connecting may take, in microseconds; 0: the usual 5 s.
  uint64_t connect_timeout_us;
  // How long a call may take, in microseconds; 0: for ever.
  uint64_t call_timeout_us;
  // The device's GID; -1: the best.
  int32_t gid_index;
  // The server thread that a client of remote calls connects to.
  uint16_t thread;
  // How many threads a server of remote calls has; 0: one.
  uint16_t threads;
  // Not 0: functions of a stream or a listener answer FARCALL_WOULD_BLOCK instead of waiting, and it has a descriptor
  // for poll and epoll.
  uint32_t nonblocking;
  // 0.
  uint32_t reserved;
} farcall_options;

// What a key holds. The value is lent.
typedef struct {
  // The value: the library's memory, to be read only.
  const void *value;
  // Its length.
  size_t value_len_bytes;
  // Another number after each change of the item.
  uint64_t version;
  // The flags that it was stored with.
  uint32_t flags;
  // 0.
  uint32_t reserved;
} farcall_item;

// Bytes of a program's.
typedef struct {
  // Where they begin.
  const void *start;
  // How many.
  size_t len_bytes;
} farcall_bytes;

// Called by farcall_kv_get_many for each key: its place in the list, and its item, which is null if the key has none.
// The item is lent until the function returns.
typedef void (*farcall_found)(void *context, size_t place, const farcall_item *item);

// A value to be stored. Set it to zeros first.
typedef struct {
  // The value.
  const void *value;
  // Its length.
  size_t value_len_bytes;
  // How long it lives, in milliseconds; 0: for ever.
  uint64_t time_to_live_ms;
  // Flags of the program's own.
  uint32_t flags;
  // A farcall_put_mode; FARCALL_PUT_MODE_SET is 0.
  uint32_t mode;
} farcall_write;

// A call, as its handler sees it: lent until the handler returns.
typedef struct {
  // The request: the library's memory, to be read only.
  const void *request;
  // Its length.
  size_t request_len_bytes;
  // The call's number, unique in its session.
  uint64_t call_id;
  // The connection it came over: a number that is unique while the connection lives.
  uint32_t connection;
  // Which method.
  uint16_t method;
  // 0.
  uint16_t reserved;
} farcall_call;

// Answers one call: appends to `reply`, or refuses. `context` is what farcall_server_start was given.
//
// It runs in the server's threads: with several of them, in several at once. It must not wait for calls to its own
// server, and no exception may leave it.
typedef void (*farcall_handler)(void *context, const farcall_call *call, farcall_reply *reply);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The words of this thread's last failure: what failed, where, why, what to do.
//
// They belong to the library and are valid until the next function of this library fails in this thread. A function
// that succeeds leaves them as they are. Before the first failure they are empty.
const char *farcall_error_message(void);

// The number that a handler refused with, after FARCALL_APPLICATION in this thread; or else 0.
uint16_t farcall_error_application_code(void);

// What a code means, in words that live as long as the library. A number that is no code has words, too.
const char *farcall_error_text(int code);

// Whether what failed with a code was executed: a farcall_executed.
int farcall_error_executed(int code);

// The version of the library that is loaded, as FARCALL_VERSION is that of the header.
uint32_t farcall_version(void);

// Sets options to the usual ones. `options_len_bytes` is sizeof(farcall_options), by which the library knows the version
// of the header.
//
// FARCALL_INVALID if the length is none of this library's version or an earlier one: the program was compiled for a
// later one.
int farcall_options_init(farcall_options *options,
                         size_t options_len_bytes);

// Connects to a store whose server (farcall kv serve --rpc) listens at `address`, "host:port".
//
// *kv is the program's until farcall_kv_close; null after a failure. `options` may be null.
int farcall_kv_connect(const char *address, const farcall_options *options, farcall_kv **kv);

// Ends a client. Nobody may be inside of a function with it. Null is none.
void farcall_kv_close(farcall_kv *kv);

// The item of a key; FARCALL_NOT_FOUND if there is none. A key has 1 to 250 bytes.
//
// The value is lent until the next function with this client.
int farcall_kv_get(farcall_kv *kv, const void *key, size_t key_len_bytes, farcall_item *item);

// Looks many keys up at once, and calls `each` for each of them, not always in their order, in this thread. `context` is
// handed to `each`, which must not use this client: it would get FARCALL_BUSY.
//
// After a failure, what `each` was told is right; the other keys were not looked up.
int farcall_kv_get_many(farcall_kv *kv,
                        const farcall_bytes *keys,
                        size_t keys_count,
                        farcall_found each,
                        void *context);

// Stores a value. FARCALL_NOT_STORED if the condition of `write->mode` did not hold.
//
// The item's version after that goes to *new_version, which may be null.
int farcall_kv_put(farcall_kv *kv,
                   const void *key,
                   size_t key_len_bytes,
                   const farcall_write *write,
                   uint64_t *new_version);

// Stores a value if the item still has `version`, as farcall_kv_get told it; `write->mode` is of no account.
// FARCALL_OTHER_VERSION if it has another one, FARCALL_NOT_FOUND if the key has no item.
int farcall_kv_compare_and_swap(farcall_kv *kv,
                                const void *key,
                                size_t key_len_bytes,
                                uint64_t version,
                                const farcall_write *write,
                                uint64_t *new_version);

// Removes the item of a key, whatever its version if `version` is 0. FARCALL_NOT_FOUND, FARCALL_OTHER_VERSION.
int farcall_kv_delete(farcall_kv *kv,
                      const void *key,
                      size_t key_len_bytes,
                      uint64_t version);

// Sets how long an item lives from now on, in milliseconds; 0: for ever. FARCALL_NOT_FOUND if the key has no item.
int farcall_kv_touch(farcall_kv *kv,
                     const void *key,
                     size_t key_len_bytes,
                     uint64_t time_to_live_ms);

// Connects to a server of remote calls at `address`, "host:port".
//
// *rpc is the program's until farcall_rpc_close; null after a failure. `options` may be null.
int farcall_rpc_connect(const char *address, const farcall_options *options, farcall_rpc **rpc);

// Ends a client. Nobody may be inside of a function with it. Null is none.
void farcall_rpc_close(farcall_rpc *rpc);

// Calls a method and waits for the result, `timeout_us` microseconds at most; 0: as long as the client's options say.
//
// The result is lent until the next function with this client. farcall_error_executed tells of any failure whether the
// call was executed; FARCALL_APPLICATION is a refusal of the handler, with its number in
// farcall_error_application_code and its text in farcall_error_message.
int farcall_rpc_call(farcall_rpc *rpc,
                     uint16_t method,
                     const void *request,
                     size_t request_len_bytes,
                     uint64_t timeout_us,
                     const void **reply,
                     size_t *reply_len_bytes);

// Starts a server of remote calls at `address`, "host:port"; port 0 lets the system choose.
//
// *server is the program's until farcall_server_stop; null after a failure. `options` may be null. `context` must live
// until then.
int farcall_server_start(const char *address,
                         const farcall_options *options,
                         farcall_handler handler,
                         void *context,
                         farcall_server **server);

// Where a server listens, as text with a zero byte: "127.0.0.1:41234". 64 bytes are enough room.
int farcall_server_address(const farcall_server *server, char *address, size_t address_room_bytes);

// Ends a server: no new connections; what came is answered, what comes is refused as not executed; then its threads end,
// and this returns. Not to be called by a handler. Null is none.
void farcall_server_stop(farcall_server *server);

// Appends bytes to the result of a call. They are copied.
int farcall_reply_append(farcall_reply *reply, const void *result, size_t result_len_bytes);

// Refuses a call: the caller gets FARCALL_APPLICATION with this number, of 15 bits, and this text, instead of a result.
int farcall_reply_refuse(farcall_reply *reply,
                         uint16_t application_code,
                         const char *message);

// Listens for streams at `address`, "host:port"; port 0 lets the system choose.
//
// *listener is the program's until farcall_listener_close; null after a failure. `options` may be null; those with
// `nonblocking` hold for the streams that it accepts, too.
int farcall_listen(const char *address,
                   const farcall_options *options,
                   farcall_listener **listener);

// Where a listener listens, as text with a zero byte. 64 bytes are enough room.
int farcall_listener_address(const farcall_listener *listener, char *address, size_t address_room_bytes);

// A descriptor for poll and epoll, which is readable when accepting may go on, after farcall_listener_accept answered
// FARCALL_WOULD_BLOCK. It belongs to the listener.
int farcall_listener_fd(farcall_listener *listener,
                        int *fd);

// Waits for a stream, or answers FARCALL_WOULD_BLOCK if the options of the listener say so.
//
// *stream is the program's until farcall_stream_close or farcall_stream_reset; null after a failure.
int farcall_listener_accept(farcall_listener *listener, farcall_stream **stream);

// Ends a listener. Streams that it accepted go on. Nobody may be inside of a function with it. Null is none.
void farcall_listener_close(farcall_listener *listener);

// Connects to a listener at `address`, "host:port". This waits, also with options with `nonblocking`.
//
// *stream is the program's until farcall_stream_close or farcall_stream_reset; null after a failure. `options` may be
// null.
int farcall_stream_connect(const char *address,
                           const farcall_options *options,
                           farcall_stream **stream);

// Reads what is there, `room_bytes` at most; waits for a first byte. *read_bytes is 0 at the end of the peer's stream.
int farcall_stream_read(farcall_stream *stream,
                        void *into,
                        size_t room_bytes,
                        size_t *read_bytes);

// Writes as much as there is room for; waits for room for a first byte. What is written arrives without further calls.
int farcall_stream_write(farcall_stream *stream,
                         const void *from,
                         size_t from_len_bytes,
                         size_t *written_bytes);

// How long a read and a write may wait, in microseconds; 0: for ever. FARCALL_TIMED_OUT after that.
int farcall_stream_set_timeouts(farcall_stream *stream, uint64_t read_timeout_us, uint64_t write_timeout_us);

// A descriptor for poll and epoll, which is readable when reading or writing may go on, after a function answered
// FARCALL_WOULD_BLOCK. It belongs to the stream, which must have options with `nonblocking`.
int farcall_stream_fd(farcall_stream *stream,
                      int *fd);

// Whether a read and a write would go on now: *readable and *writable are 1 or 0.
//
// A program that waits for both on one descriptor asks this after each FARCALL_WOULD_BLOCK: a write that found no room
// may have taken in what the read waits for, of which the descriptor tells nothing any more; and the other way round.
int farcall_stream_ready(farcall_stream *stream,
                         int *readable,
                         int *writable);

// Where the other end is, as text with a zero byte. 64 bytes are enough room.
int farcall_stream_peer_address(const farcall_stream *stream, char *address, size_t address_room_bytes);

// What carries the bytes, as text with a zero byte: "verbs", one-sided WRITEs through shared memory or an RNIC, or "tcp",
// between hosts where no RNIC reaches. 8 bytes are enough room.
int farcall_stream_path(const farcall_stream *stream,
                        char *path,
                        size_t path_room_bytes);

// Ends what this end writes: the peer reads what is on its way, then the end. Reading goes on.
int farcall_stream_shutdown(farcall_stream *stream);

// Ends a stream, and waits until what was written has arrived, `timeout_us` microseconds at most. FARCALL_TIMED_OUT or
// FARCALL_RESET: what had not arrived is lost.
//
// The stream is gone in any case. Nobody may be inside of a function with it. Null is none.
int farcall_stream_close(farcall_stream *stream,
                         uint64_t timeout_us);

// Gives a stream up: the peer reads what had arrived, then FARCALL_RESET. Nobody may be inside of a function with it.
// Null is none.
void farcall_stream_reset(farcall_stream *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARCALL_H */
