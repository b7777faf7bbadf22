/** Unary calls of four threads, and a stream; every answer must be what was sent. */
import io.grpc.*;
import io.grpc.netty.*;
import io.grpc.stub.*;
import java.io.*;
import java.net.InetSocketAddress;
import java.util.*;
import java.util.concurrent.CountDownLatch;

public class GrpcEcho {
    static final MethodDescriptor.Marshaller<byte[]> BYTES = new MethodDescriptor.Marshaller<>() {
        public InputStream stream(byte[] value) { return new ByteArrayInputStream(value); }
        public byte[] parse(InputStream stream) {
            try { return stream.readAllBytes(); } catch (IOException e) { throw new UncheckedIOException(e); }
        }
    };
    static MethodDescriptor<byte[], byte[]> method(String name, MethodDescriptor.MethodType type) {
        return MethodDescriptor.newBuilder(BYTES, BYTES).setFullMethodName("Echo/" + name).setType(type).build();
    }
    static final MethodDescriptor<byte[], byte[]> ONE = method("One", MethodDescriptor.MethodType.UNARY);
    static final MethodDescriptor<byte[], byte[]> BOTH = method("Both", MethodDescriptor.MethodType.BIDI_STREAMING);

    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        if (args[0].equals("server")) serve(port);
        ManagedChannel channel = NettyChannelBuilder.forAddress("127.0.0.1", port).usePlaintext().build();
        call(channel);
        stream(channel);
        System.out.println("done");
        System.exit(0);
    }

    static void serve(int port) throws Exception {
        ServerServiceDefinition service = ServerServiceDefinition.builder("Echo")
            .addMethod(ONE, ServerCalls.asyncUnaryCall((byte[] request, StreamObserver<byte[]> to) -> {
                to.onNext(request);
                to.onCompleted();
            }))
            .addMethod(BOTH, ServerCalls.asyncBidiStreamingCall((StreamObserver<byte[]> to) -> to)).build();
        InetSocketAddress place = new InetSocketAddress("127.0.0.1", port);
        NettyServerBuilder.forAddress(place).addService(service).build().start().awaitTermination();
    }

    static void call(ManagedChannel channel) throws Exception {
        Random random = new Random(1);
        List<Thread> threads = new ArrayList<>();
        for (int n = 1; n <= 4; n++) {
            byte[] sent = new byte[n * 25_000];
            random.nextBytes(sent);
            Thread thread = new Thread(() -> {
                for (int i = 1; i <= 50; i++) {
                    byte[] some = Arrays.copyOf(sent, i * sent.length / 50);
                    CallOptions options = CallOptions.DEFAULT.withWaitForReady();
                    byte[] got = ClientCalls.blockingUnaryCall(channel, ONE, options, some);
                    if (!Arrays.equals(some, got)) System.exit(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) thread.join();
    }

    static void stream(ManagedChannel channel) throws Exception {
        Random random = new Random(2);
        ByteArrayOutputStream all = new ByteArrayOutputStream(), back = new ByteArrayOutputStream();
        CountDownLatch ended = new CountDownLatch(1);
        StreamObserver<byte[]> answers = new StreamObserver<>() {
            public void onNext(byte[] part) { back.writeBytes(part); }
            public void onError(Throwable error) { error.printStackTrace(); ended.countDown(); }
            public void onCompleted() { ended.countDown(); }
        };
        StreamObserver<byte[]> to =
            ClientCalls.asyncBidiStreamingCall(channel.newCall(BOTH, CallOptions.DEFAULT), answers);
        for (int i = 0; i < 200; i++) {
            byte[] part = new byte[1 + random.nextInt(5_000)];
            random.nextBytes(part);
            all.writeBytes(part);
            to.onNext(part);
        }
        to.onCompleted();
        ended.await();
        if (!Arrays.equals(all.toByteArray(), back.toByteArray())) System.exit(1);
    }
}
