/* Farcall: remote calls, a key-value store and byte streams over RDMA verbs.
 *
 * Generated from the sources of the library: change those, then run
 * FARCALL_WRITE_HEADER=1 cargo test -p farcall-capi --test header.
 *
 * Functions that can fail return a farcall_code; farcall_error_message returns the message of the last error. Objects are
 * opaque and used by one thread at a time; different objects are independent. Null and misaligned pointers are
 * FARCALL_INVALID; farcall(3), Pointers, states how long pointers must be valid. Lengths are in bytes, times in the unit
 * of their name. Texts are UTF-8 and end with a zero byte. A forked child uses none of its parent's objects. */

#ifndef FARCALL_H
#define FARCALL_H

#include <stddef.h>
#include <stdint.h>

// Version of this header: major << 16 | minor << 8 | patch.
#define FARCALL_VERSION 256

// Result of a function. Numbers never change their meaning; later versions add some.
typedef enum {
  // Done.
  FARCALL_OK = 0,
  // An argument is invalid: null, misaligned or out of range. Nothing was done.
  FARCALL_INVALID = 1,
  // Another thread is in a function with the same object. Nothing was done.
  FARCALL_BUSY = 2,
  // The library panicked, which is a defect of the library. The object can only be closed.
  FARCALL_PANICKED = 3,
  // The system has no thread, descriptor or memory left.
  FARCALL_SYSTEM = 4,
  // The device cannot be used.
  FARCALL_DEVICE = 5,
  // No process listens at the address, or no reply arrived in time.
  FARCALL_UNREACHABLE = 6,
  // The other end refuses the connection, or does not speak this protocol.
  FARCALL_REFUSED = 7,
  // The deadline passed before the call was sent. It was not executed.
  FARCALL_DEADLINE_EXCEEDED = 8,
  // The connection is lost and the call was never sent.
  FARCALL_NOT_SENT = 9,
  // The call was sent, and there is no way to know whether it was executed.
  FARCALL_OUTCOME_UNKNOWN = 10,
  // The server did not execute the call: it is shutting down, or has no space for it.
  FARCALL_NOT_EXECUTED = 11,
  // The call was executed, and its result is lost.
  FARCALL_RESULT_LOST = 12,
  // The handler refused the call, with a code of its own.
  FARCALL_APPLICATION = 13,
  // The request or the value is longer than the server accepts. It was not executed.
  FARCALL_TOO_LARGE = 14,
  // The key is invalid: empty, or longer than 250 bytes.
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
  // A non-blocking function would have to wait.
  FARCALL_WOULD_BLOCK = 22,
  // The time-out has passed. Nothing was read, written or accepted.
  FARCALL_TIMED_OUT = 23,
  // The stream broke: the other end has exited or reset it, and bytes that had not arrived are lost.
  FARCALL_RESET = 24,
  // This end has ended its stream, or the peer no longer reads it.
  FARCALL_BROKEN_PIPE = 25,
} farcall_code;

// States whether the operation that a function requested was executed.
typedef enum {
  // It was not executed and will not be: repeating it is safe.
  FARCALL_EXECUTED_NO = 0,
  // It was executed, once.
  FARCALL_EXECUTED_YES = 1,
  // It may have been executed, at most once.
  FARCALL_EXECUTED_UNKNOWN = 2,
} farcall_executed;

// Condition of a write, and its effect on an existing value.
typedef enum {
  // Stores the value unconditionally.
  FARCALL_PUT_MODE_SET = 0,
  // Stores the value only if the key has no item.
  FARCALL_PUT_MODE_ADD = 1,
  // Stores the value only if the key has an item.
  FARCALL_PUT_MODE_REPLACE = 2,
  // Appends to the value of the item, which keeps its flags and its time to live.
  FARCALL_PUT_MODE_APPEND = 3,
  // Prepends to the value of the item, which keeps its flags and its time to live.
  FARCALL_PUT_MODE_PREPEND = 4,
} farcall_put_mode;

// A client of a key-value store, with a connection to each partition of the store. Used by one thread at a time: a
// function that finds it in use fails with FARCALL_BUSY.
typedef struct farcall_kv farcall_kv;

// A listener, which accepts byte streams. Used by one thread at a time: a function that finds it in use fails with
// FARCALL_BUSY.
typedef struct farcall_listener farcall_listener;

// The reply to a call, which the handler fills. It is valid until the handler returns.
typedef struct farcall_reply farcall_reply;

// A client of remote calls, with a connection to one server thread. Used by one thread at a time: a function that
// finds it in use fails with FARCALL_BUSY.
typedef struct farcall_rpc farcall_rpc;

// A running server of remote calls.
typedef struct farcall_server farcall_server;

// A byte stream, which carries reliable, ordered bytes in both directions. Used by one thread at a time: a function
// that finds it in use fails with FARCALL_BUSY.
typedef struct farcall_stream farcall_stream;

// Options of a client, a server, a listener or a stream. Functions that take options accept a null pointer for the
// defaults.
//
// Initialize them with farcall_options_init, because later versions append fields. The library reads the options and
// the texts in them only during the function call.
typedef struct {
  // sizeof(farcall_options); set by farcall_options_init.
  size_t options_len_bytes;
  // Provider: "softnic", "ibv" or "auto"; null: "auto".
  const char *provider;
  // Name of a device of libibverbs; null: the first device with an active port.
  const char *device;
  // Preset of a client of remote calls or of a store; null: the client chooses.
  const char *preset;
  // Timeout of connecting in microseconds; 0: 5 seconds.
  uint64_t connect_timeout_us;
  // Timeout of a remote call in microseconds; 0: none.
  uint64_t call_timeout_us;
  // Index of a GID of the device; -1: the best GID.
  int32_t gid_index;
  // Index of the server thread to which a client of remote calls connects.
  uint16_t thread;
  // Number of threads of a server of remote calls; 0: one.
  uint16_t threads;
  // Not 0: functions of the stream or listener return FARCALL_WOULD_BLOCK instead of waiting, and it has a
  // descriptor for poll and epoll.
  uint32_t nonblocking;
  // Reserved; 0.
  uint32_t reserved;
} farcall_options;

// The item of a key. The value is memory of the library; the function that returns the item states how long it is
// valid.
typedef struct {
  // The value, which must not be written.
  const void *value;
  // Length of the value in bytes.
  size_t value_len_bytes;
  // Version of the item, another number after each change.
  uint64_t version;
  // Flags with which the item was stored.
  uint32_t flags;
  // Reserved; 0.
  uint32_t reserved;
} farcall_item;

// A range of bytes in memory of the program.
typedef struct {
  // Address of the first byte; may be null if there are none.
  const void *start;
  // Length in bytes.
  size_t len_bytes;
} farcall_bytes;

// Called by farcall_kv_get_many for each key, with the index of the key in the list and its item, or a null pointer
// if the key has no item. The item is valid until the function returns. No exception may leave the function.
typedef void (*farcall_found)(void *context, size_t place, const farcall_item *item);

// A value to be stored. Initialize it with zeros: 0 is the default of every field.
typedef struct {
  // The value; may be null if it is empty.
  const void *value;
  // Length of the value in bytes.
  size_t value_len_bytes;
  // Time to live in milliseconds; 0: unlimited.
  uint64_t time_to_live_ms;
  // Flags, which the store returns with the item and does not interpret.
  uint32_t flags;
  // A farcall_put_mode; FARCALL_PUT_MODE_SET is 0.
  uint32_t mode;
} farcall_write;

// A call, as passed to its handler. It is valid until the handler returns.
typedef struct {
  // The request, which must not be written. Valid until the handler returns.
  const void *request;
  // Length of the request in bytes.
  size_t request_len_bytes;
  // Number of the call, unique in its session.
  uint64_t call_id;
  // Number of the connection over which the call arrived, unique while the connection exists.
  uint32_t connection;
  // Number of the method.
  uint16_t method;
  // Reserved; 0.
  uint16_t reserved;
} farcall_call;

// Handles one call: appends the result to `reply`, or refuses the call. `context` is the pointer that was passed to
// farcall_server_start.
//
// The handler runs in the threads of the server; if there are several, it runs concurrently. It must not wait for
// calls to its own server, and no exception may leave it.
typedef void (*farcall_handler)(void *context, const farcall_call *call, farcall_reply *reply);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the last error in the calling thread: the operation, the object, the cause and the remedy.
//
// The text is memory of the library. It is valid until the next function of this library fails in this thread, or the
// thread exits. Functions that succeed do not change it. Before the first error it is empty.
const char *farcall_error_message(void);

// Returns the application code with which a handler refused the call, if the last error in the calling thread is
// FARCALL_APPLICATION. Otherwise returns 0.
uint16_t farcall_error_application_code(void);

// Returns the description of a farcall_code. The text is static. A number that is no farcall_code has a description,
// too.
const char *farcall_error_text(int code);

// Returns whether an operation that ended with this code was executed, as a farcall_executed.
// FARCALL_EXECUTED_UNKNOWN for a number that is no farcall_code.
int farcall_error_executed(int code);

// Returns the version of the loaded library, in the format of FARCALL_VERSION.
uint32_t farcall_version(void);

// Sets options to the defaults. `options_len_bytes` is sizeof(farcall_options), from which the library derives the
// version of the header.
//
// Returns FARCALL_INVALID if neither this version of the library nor an earlier one has options of this length: the
// program was compiled with the header of a later version.
int farcall_options_init(farcall_options *options,
                         size_t options_len_bytes);

// Connects to a store whose server (farcall kv serve --rpc) listens at `address`, "host:port".
//
// *kv belongs to the program until farcall_kv_close. It is null after a failure. `options` may be null.
int farcall_kv_connect(const char *address, const farcall_options *options, farcall_kv **kv);

// Closes a client and frees it. No other function may be running with it, or be called with it later. A null pointer
// is ignored.
void farcall_kv_close(farcall_kv *kv);

// Reads the item of a key. Returns FARCALL_NOT_FOUND if the key has no item. A key has 1 to 250 bytes.
//
// The value is valid until the next function call with this client.
int farcall_kv_get(farcall_kv *kv, const void *key, size_t key_len_bytes, farcall_item *item);

// Looks up many keys at once, and calls `each` for each of them in this thread, not always in the order of the list.
// `context` is passed to `each`. A function that `each` calls with this client fails with FARCALL_BUSY.
//
// After a failure, the results that `each` received are valid. The other keys were not looked up.
int farcall_kv_get_many(farcall_kv *kv,
                        const farcall_bytes *keys,
                        size_t keys_count,
                        farcall_found each,
                        void *context);

// Stores a value. Returns FARCALL_NOT_STORED if the condition of `write->mode` does not hold.
//
// Writes the new version of the item to *new_version, unless `new_version` is null.
int farcall_kv_put(farcall_kv *kv,
                   const void *key,
                   size_t key_len_bytes,
                   const farcall_write *write,
                   uint64_t *new_version);

// Stores a value if the item still has the version that an earlier function returned. `write->mode` has no effect.
// Returns FARCALL_OTHER_VERSION if the item has another version, and FARCALL_NOT_FOUND if the key has no item.
//
// Writes the new version of the item to *new_version, unless `new_version` is null.
int farcall_kv_compare_and_swap(farcall_kv *kv,
                                const void *key,
                                size_t key_len_bytes,
                                uint64_t version,
                                const farcall_write *write,
                                uint64_t *new_version);

// Removes the item of a key if it has this version; if `version` is 0, in any version. Returns FARCALL_OTHER_VERSION
// if the item has another version, and FARCALL_NOT_FOUND if the key has no item.
int farcall_kv_delete(farcall_kv *kv,
                      const void *key,
                      size_t key_len_bytes,
                      uint64_t version);

// Sets the remaining time to live of an item in milliseconds; 0: unlimited. Returns FARCALL_NOT_FOUND if the key has
// no item.
int farcall_kv_touch(farcall_kv *kv,
                     const void *key,
                     size_t key_len_bytes,
                     uint64_t time_to_live_ms);

// Connects to a server of remote calls at `address`, "host:port".
//
// *rpc belongs to the program until farcall_rpc_close. It is null after a failure. `options` may be null.
int farcall_rpc_connect(const char *address, const farcall_options *options, farcall_rpc **rpc);

// Closes a client and frees it. No other function may be running with it, or be called with it later. A null pointer
// is ignored.
void farcall_rpc_close(farcall_rpc *rpc);

// Calls a method and waits for the result, at most `timeout_us` microseconds; 0: the timeout of the client's options.
//
// *reply and *reply_len_bytes are the result, which is valid until the next function call with this client. After a
// failure, farcall_error_executed returns whether the call was executed. FARCALL_APPLICATION is a refusal by the
// handler: farcall_error_application_code returns its code, and farcall_error_message includes its text.
int farcall_rpc_call(farcall_rpc *rpc,
                     uint16_t method,
                     const void *request,
                     size_t request_len_bytes,
                     uint64_t timeout_us,
                     const void **reply,
                     size_t *reply_len_bytes);

// Starts a server of remote calls at `address`, "host:port". For port 0 the system chooses a port.
//
// *server belongs to the program until farcall_server_stop. It is null after a failure. `options` may be null.
// `context` is passed to `handler`, and must be valid until farcall_server_stop returns.
int farcall_server_start(const char *address,
                         const farcall_options *options,
                         farcall_handler handler,
                         void *context,
                         farcall_server **server);

// Writes the address at which a server listens, as text with a zero byte: "127.0.0.1:41234". A buffer of 64 bytes is
// sufficient.
int farcall_server_address(const farcall_server *server,
                           char *address,
                           size_t address_room_bytes);

// Stops a server and frees it. The server accepts no new connections, finishes the calls received so far, and refuses
// later ones as not executed. Returns after the threads of the server have ended; hence a handler must not call it.
//
// No other function may be running with it, or be called with it later. A null pointer is ignored.
void farcall_server_stop(farcall_server *server);

// Appends a copy of `result_len_bytes` bytes to the result of a call.
int farcall_reply_append(farcall_reply *reply, const void *result, size_t result_len_bytes);

// Refuses a call: instead of a result the caller receives FARCALL_APPLICATION with this code, from 0 to 32767, and
// this text.
int farcall_reply_refuse(farcall_reply *reply,
                         uint16_t application_code,
                         const char *message);

// Listens for streams at `address`, "host:port". For port 0 the system chooses a port.
//
// *listener belongs to the program until farcall_listener_close. It is null after a failure. `options` may be null;
// `nonblocking` also applies to the accepted streams.
int farcall_listen(const char *address,
                   const farcall_options *options,
                   farcall_listener **listener);

// Writes the address at which a listener listens, as text with a zero byte. A buffer of 64 bytes is sufficient.
int farcall_listener_address(const farcall_listener *listener,
                             char *address,
                             size_t address_room_bytes);

// Returns a descriptor for poll and epoll in *fd. After farcall_listener_accept has returned FARCALL_WOULD_BLOCK, the
// descriptor is readable when accepting may continue. It belongs to the listener: the program must not close it.
int farcall_listener_fd(farcall_listener *listener,
                        int *fd);

// Waits for a stream and accepts it. If the options of the listener have `nonblocking`, returns FARCALL_WOULD_BLOCK
// instead of waiting.
//
// *stream belongs to the program until farcall_stream_close or farcall_stream_reset. It is null after a failure.
int farcall_listener_accept(farcall_listener *listener,
                            farcall_stream **stream);

// Closes a listener and frees it. Accepted streams remain open. No other function may be running with it, or be
// called with it later. A null pointer is ignored.
void farcall_listener_close(farcall_listener *listener);

// Connects to a listener at `address`, "host:port". Waits until the stream is established, even if the options have
// `nonblocking`.
//
// *stream belongs to the program until farcall_stream_close or farcall_stream_reset. It is null after a failure.
// `options` may be null.
int farcall_stream_connect(const char *address,
                           const farcall_options *options,
                           farcall_stream **stream);

// Reads the available bytes, at most `room_bytes`. Waits if there are none. *read_bytes is their number; it is 0 at
// the end of the peer's stream, and if `room_bytes` is 0.
int farcall_stream_read(farcall_stream *stream,
                        void *into,
                        size_t room_bytes,
                        size_t *read_bytes);

// Writes as many bytes as there is space for. Waits if there is none. *written_bytes is their number. They arrive at
// the peer without further function calls.
int farcall_stream_write(farcall_stream *stream,
                         const void *from,
                         size_t from_len_bytes,
                         size_t *written_bytes);

// Sets the timeouts of reads and writes in microseconds; 0: none. A read or write that exceeds its timeout returns
// FARCALL_TIMED_OUT.
int farcall_stream_set_timeouts(farcall_stream *stream,
                                uint64_t read_timeout_us,
                                uint64_t write_timeout_us);

// Returns a descriptor for poll and epoll in *fd. After a function has returned FARCALL_WOULD_BLOCK, the descriptor
// is readable when reading or writing may continue. The options of the stream must have `nonblocking`. The descriptor
// belongs to the stream: the program must not close it.
int farcall_stream_fd(farcall_stream *stream,
                      int *fd);

// Returns whether a read and a write could proceed without waiting: *readable and *writable are set to 1 or 0.
//
// A program that waits for both directions with one descriptor calls this function after each FARCALL_WOULD_BLOCK. A
// write that found no space may have consumed the event for which the read waits, and the descriptor does not report
// that event again. The same applies to a read.
int farcall_stream_ready(farcall_stream *stream,
                         int *readable,
                         int *writable);

// Writes the address of the peer, as text with a zero byte. A buffer of 64 bytes is sufficient.
int farcall_stream_peer_address(const farcall_stream *stream, char *address, size_t address_room_bytes);

// Writes the path that carries the bytes, as text with a zero byte: "verbs", one-sided WRITEs through shared memory
// or an RNIC, or "tcp", between hosts that no RNIC connects. A buffer of 8 bytes is sufficient.
int farcall_stream_path(const farcall_stream *stream,
                        char *path,
                        size_t path_room_bytes);

// Ends the outgoing direction: the peer reads the bytes in flight, then the end of the stream. This end can still
// read.
int farcall_stream_shutdown(farcall_stream *stream);

// Closes a stream: ends the outgoing direction and waits until the written bytes have arrived, at most `timeout_us`
// microseconds. After FARCALL_TIMED_OUT and FARCALL_RESET, bytes that had not arrived are lost.
//
// The stream is freed in every case. No other function may be running with it, or be called with it later. A null
// pointer is ignored.
int farcall_stream_close(farcall_stream *stream,
                         uint64_t timeout_us);

// Resets a stream and frees it: the peer reads the bytes that had arrived, then gets FARCALL_RESET. No other function
// may be running with it, or be called with it later. A null pointer is ignored.
void farcall_stream_reset(farcall_stream *stream);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARCALL_H */
