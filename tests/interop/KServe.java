// SPDX-License-Identifier: Apache-2.0
//
// grpc-java, with stubs that its plugin makes of our protos, as a client of KServe v2: one line per case, exit 1 if any
// failed.
// usage: KServe ADDRESS DIRECTORY   (kserve.py says what is in it)

import com.google.protobuf.ByteString;
import inference.GRPCInferenceServiceGrpc;
import inference.GrpcService.InferTensorContents;
import inference.GrpcService.ModelInferRequest;
import inference.GrpcService.ModelInferResponse;
import inference.GrpcService.ModelMetadataRequest;
import inference.GrpcService.ModelMetadataResponse;
import inference.GrpcService.ModelReadyRequest;
import inference.GrpcService.ModelStreamInferResponse;
import inference.GrpcService.ServerReadyRequest;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

public final class KServe {
    private interface Case {
        void run() throws Exception;
    }

    private static final int PATIENCE_S = 60;
    private final ManagedChannel channel;
    private final ByteString keys;
    private final ByteString counts;
    private final ByteString rows;
    private int failed = 0;

    private KServe(String address, Path directory) throws Exception {
        channel = ManagedChannelBuilder.forTarget(address).usePlaintext().build();
        keys = ByteString.copyFrom(Files.readAllBytes(directory.resolve("keys")));
        counts = ByteString.copyFrom(Files.readAllBytes(directory.resolve("counts")));
        rows = ByteString.copyFrom(Files.readAllBytes(directory.resolve("rows")));
    }

    private GRPCInferenceServiceGrpc.GRPCInferenceServiceBlockingStub stub() {
        return GRPCInferenceServiceGrpc.newBlockingStub(channel).withDeadlineAfter(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static void expect(boolean is, String what) {
        if (!is) {
            throw new AssertionError(what);
        }
    }

    private ModelInferRequest.Builder request() {
        return ModelInferRequest.newBuilder().setModelName("m").setId("java")
            .addInputs(input("KEYS", "INT64").addShape(keys.size() / 8))
            .addInputs(input("NUMKEYS", "INT32").addShape(1).addShape(counts.size() / 4));
    }

    private ModelInferRequest raw() {
        return request().addRawInputContents(keys).addRawInputContents(counts).build();
    }

    private static ModelInferRequest.InferInputTensor.Builder input(String name, String datatype) {
        return ModelInferRequest.InferInputTensor.newBuilder().setName(name).setDatatype(datatype);
    }

    private void check(ModelInferResponse reply) {
        expect(reply.getModelName().equals("m") && reply.getId().equals("java"), "names: " + reply.getModelName());
        expect(reply.getOutputsCount() == 1 && reply.getOutputs(0).getName().equals("OUTPUT0")
            && reply.getOutputs(0).getDatatype().equals("FP32")
            && reply.getOutputs(0).getShapeList().equals(List.of((long) rows.size() / 4)), "outputs");
        expect(reply.getRawOutputContents(0).equals(rows), "other rows than those of the formula");
    }

    private void ready() {
        expect(stub().serverReady(ServerReadyRequest.getDefaultInstance()).getReady(), "server");
        expect(stub().modelReady(ModelReadyRequest.newBuilder().setName("m").build()).getReady(), "model");
    }

    private void metadata() {
        ModelMetadataResponse about = stub().modelMetadata(ModelMetadataRequest.newBuilder().setName("m").build());
        expect(about.getPlatform().equals("hps") && about.getVersionsList().equals(List.of("1")), about.toString());
        expect(about.getInputs(0).getName().equals("KEYS") && about.getInputs(1).getDatatype().equals("INT32"),
            about.toString());
    }

    private void typed() {
        InferTensorContents.Builder int64 = InferTensorContents.newBuilder();
        InferTensorContents.Builder int32 = InferTensorContents.newBuilder();
        ByteBuffer from = keys.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
        while (from.hasRemaining()) {
            int64.addInt64Contents(from.getLong());
        }
        from = counts.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN);
        while (from.hasRemaining()) {
            int32.addIntContents(from.getInt());
        }
        ModelInferRequest.Builder request = request();
        request.getInputsBuilder(0).setContents(int64);
        request.getInputsBuilder(1).setContents(int32);
        check(stub().modelInfer(request.build()));
    }

    private void stream() throws Exception {
        AtomicInteger n = new AtomicInteger();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        CountDownLatch ended = new CountDownLatch(1);
        StreamObserver<ModelInferRequest> requests = GRPCInferenceServiceGrpc.newStub(channel)
            .withDeadlineAfter(PATIENCE_S, TimeUnit.SECONDS).modelStreamInfer(new StreamObserver<>() {
                @Override
                public void onNext(ModelStreamInferResponse reply) {
                    try {
                        check(reply.getInferResponse());
                        n.incrementAndGet();
                    } catch (AssertionError error) {
                        failure.set(error);
                    }
                }

                @Override
                public void onError(Throwable error) {
                    failure.set(error);
                    ended.countDown();
                }

                @Override
                public void onCompleted() {
                    ended.countDown();
                }
            });
        for (int i = 0; i < 5; i++) {
            requests.onNext(raw());
        }
        requests.onCompleted();
        expect(ended.await(PATIENCE_S, TimeUnit.SECONDS), "the stream did not end");
        expect(failure.get() == null, String.valueOf(failure.get()));
        expect(n.get() == 5, n + " answers");
    }

    private void refused() {
        try {
            stub().modelInfer(raw().toBuilder().setModelName("nope").build());
        } catch (StatusRuntimeException error) {
            expect(error.getStatus().getCode() == Status.Code.NOT_FOUND, error.toString());
            expect(error.getMessage().contains("Request for unknown model: 'nope' is not found"), error.toString());
            return;
        }
        throw new AssertionError("no error");
    }

    private void one(String name, Case test) {
        try {
            test.run();
            System.out.println("PASS java_kserve_" + name);
        } catch (Exception | AssertionError error) {
            failed++;
            System.out.println("FAIL java_kserve_" + name + " " + error);
        }
    }

    public static void main(String[] args) throws Exception {
        KServe client = new KServe(args[0], Path.of(args[1]));
        client.one("ready", client::ready);
        client.one("metadata", client::metadata);
        client.one("infer_raw", () -> client.check(client.stub().modelInfer(client.raw())));
        client.one("infer_gzip", () -> client.check(client.stub().withCompression("gzip").modelInfer(client.raw())));
        client.one("infer_typed", client::typed);
        client.one("stream", client::stream);
        client.one("refused", client::refused);
        client.channel.shutdownNow();
        System.exit(client.failed == 0 ? 0 : 1);
    }
}
