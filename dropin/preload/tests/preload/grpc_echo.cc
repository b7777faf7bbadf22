// Asynchronous unary calls, eight under way, and streams; every answer must be what was sent. Messages are bytes, so
// that nothing is generated: `grpc_echo server|client PORT`.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kUnderWay = 8;
constexpr int kCalls = 400;
constexpr int kStreamed = 200;

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
    grpc::Slice slice(bytes);
    return grpc::ByteBuffer(&slice, 1);
}

std::string ToBytes(const grpc::ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (!buffer.Dump(&slices).ok()) abort();
    for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return bytes;
}

std::string Random(size_t length_bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::string bytes(length_bytes, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    return bytes;
}

void Expect(bool holds, const char* what) {
    if (holds) return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

// One call at the server: sends back each message that comes, until the client has no more.
class Echo {
  public:
    Echo(grpc::AsyncGenericService* service, grpc::ServerCompletionQueue* queue)
        : service_(service), queue_(queue), stream_(&context_) {
        service_->RequestCall(&context_, &stream_, queue_, queue_, this);
    }

    void Step(bool ok) {
        switch (next_) {
        case Next::kCalled:
            if (!ok) return delete this;
            new Echo(service_, queue_);
            next_ = Next::kRead;
            return stream_.Read(&message_, this);
        case Next::kRead:
            next_ = ok ? Next::kWritten : Next::kFinished;
            return ok ? stream_.Write(message_, this) : stream_.Finish(grpc::Status::OK, this);
        case Next::kWritten:
            next_ = ok ? Next::kRead : Next::kFinished;
            return ok ? stream_.Read(&message_, this) : stream_.Finish(grpc::Status::CANCELLED, this);
        case Next::kFinished: delete this;
        }
    }

  private:
    enum class Next { kCalled, kRead, kWritten, kFinished } next_ = Next::kCalled;
    grpc::AsyncGenericService* service_;
    grpc::ServerCompletionQueue* queue_;
    grpc::GenericServerContext context_;
    grpc::GenericServerAsyncReaderWriter stream_;
    grpc::ByteBuffer message_;
};

void Serve(const std::string& place) {
    grpc::AsyncGenericService service;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(place, grpc::InsecureServerCredentials());
    builder.RegisterAsyncGenericService(&service);
    std::unique_ptr<grpc::ServerCompletionQueue> queue = builder.AddCompletionQueue();
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    Expect(server != nullptr, "the server did not start");
    new Echo(&service, queue.get());
    void* tag;
    for (bool ok; queue->Next(&tag, &ok);) static_cast<Echo*>(tag)->Step(ok);
}

struct Unary {
    grpc::ClientContext context;
    std::string sent;
    grpc::ByteBuffer answer;
    grpc::Status status;
    std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;

    Unary(grpc::GenericStub* stub, grpc::CompletionQueue* queue, int number)
        : sent(Random(1 + number * 7919 % 100'000, number)) {
        context.set_wait_for_ready(true);
        reader = stub->PrepareUnaryCall(&context, "/Echo/One", ToBuffer(sent), queue);
        reader->StartCall();
        reader->Finish(&answer, &status, this);
    }
};

void Call(grpc::GenericStub* stub) {
    grpc::CompletionQueue queue;
    int begun = 0;
    for (; begun < kUnderWay; ++begun) new Unary(stub, &queue, begun);
    for (int ended = 0; ended < kCalls; ++ended) {
        void* tag;
        bool ok;
        Expect(queue.Next(&tag, &ok) && ok, "a call did not end");
        std::unique_ptr<Unary> call(static_cast<Unary*>(tag));
        Expect(call->status.ok(), call->status.error_message().c_str());
        Expect(ToBytes(call->answer) == call->sent, "wrong bytes");
        if (begun < kCalls) new Unary(stub, &queue, begun++);
    }
}

void Stream(grpc::GenericStub* stub) {
    grpc::CompletionQueue queue;
    const auto step = [&queue] {
        void* tag;
        bool ok;
        return queue.Next(&tag, &ok) && ok;
    };
    grpc::ClientContext context;
    auto stream = stub->PrepareCall(&context, "/Echo/Both", &queue);
    stream->StartCall(nullptr);
    Expect(step(), "the stream did not begin");
    for (int number = 0; number < kStreamed; ++number) {
        const std::string sent = Random(1 + number * 31 % 5000, number);
        grpc::ByteBuffer answer;
        stream->Write(ToBuffer(sent), nullptr);
        Expect(step(), "a message was not written");
        stream->Read(&answer, nullptr);
        Expect(step(), "a message was not read");
        Expect(ToBytes(answer) == sent, "wrong bytes");
    }
    stream->WritesDone(nullptr);
    Expect(step(), "the stream did not close");
    grpc::Status status;
    stream->Finish(&status, nullptr);
    Expect(step() && status.ok(), "the stream failed");
}

}  // namespace

int main(int, char** arguments) {
    const std::string end = arguments[1], place = std::string("127.0.0.1:") + arguments[2];
    if (end == "server") Serve(place);
    grpc::GenericStub stub(grpc::CreateChannel(place, grpc::InsecureChannelCredentials()));
    Call(&stub);
    Stream(&stub);
    puts("done");
}
