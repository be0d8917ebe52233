// SPDX-License-Identifier: Apache-2.0
//
// grpc-java as a client of hpsd. test_clients.py describes the commands.

import com.google.gson.Gson;
import com.google.protobuf.ByteString;
import hps.v1.Lookup.LookupRequest;
import hps.v1.Lookup.TableQuery;
import hps.v1.ParameterServerGrpc;
import io.grpc.Channel;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

final class Scenarios {
    private static final int PATIENCE_MS = 60_000;
    private static final BufferedReader INPUT = new BufferedReader(new InputStreamReader(System.in));
    private static Channel channel;

    private static LookupRequest request(int n) {
        var keys = ByteBuffer.allocate(8 * n).order(ByteOrder.LITTLE_ENDIAN);
        for (long key = 0; key < n; key++) {
            keys.putLong(key);
        }
        var query = TableQuery.newBuilder().setTable("items").setKeys(ByteString.copyFrom(keys.flip()));
        return LookupRequest.newBuilder().setModel("default").addQueries(query).build();
    }

    private static ParameterServerGrpc.ParameterServerBlockingStub stub(int limitMs) {
        return ParameterServerGrpc.newBlockingStub(channel).withDeadlineAfter(limitMs, TimeUnit.MILLISECONDS);
    }

    private static Status.Code lookup(int limitMs) {
        try {
            stub(limitMs).lookup(request(3));
            return Status.Code.OK;
        } catch (StatusRuntimeException error) {
            System.err.println(error);
            return error.getStatus().getCode();
        }
    }

    private static void rows(int n, boolean stream) throws Exception {
        var hash = MessageDigest.getInstance("SHA-256");
        int messages = 0;
        if (stream) {
            for (var replies = stub(PATIENCE_MS).lookupStream(request(n)); replies.hasNext(); messages++) {
                hash.update(replies.next().getResults(0).getRows().asReadOnlyByteBuffer());
            }
        } else {
            hash.update(stub(PATIENCE_MS).lookup(request(n)).getResults(0).getRows().asReadOnlyByteBuffer());
            messages = 1;
        }
        System.out.println(HexFormat.of().formatHex(hash.digest()) + " " + messages);
    }

    private static void deadline() throws Exception {
        for (int limitMs : new int[] {PATIENCE_MS, 200, PATIENCE_MS}) {
            INPUT.readLine();
            System.out.println(lookup(limitMs));
        }
    }

    private static void health() {
        var stub = HealthGrpc.newBlockingStub(channel);
        System.out.println(stub.check(HealthCheckRequest.getDefaultInstance()).getStatus());
        try {
            stub.watch(HealthCheckRequest.getDefaultInstance()).forEachRemaining(reply -> System.out.println(reply.getStatus()));
        } catch (StatusRuntimeException error) {
            System.out.println(error.getStatus().getCode());
        }
    }

    private static void balance() throws Exception {
        var ended = new AtomicBoolean();
        var failed = new AtomicInteger();
        var threads = new Thread[4];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                while (!ended.get()) {
                    failed.addAndGet(lookup(PATIENCE_MS) == Status.Code.OK ? 0 : 1);
                }
            });
            threads[i].start();
        }
        INPUT.readLine();
        ended.set(true);
        for (var thread : threads) {
            thread.join();
        }
        System.out.println(failed);
    }

    public static void main(String[] args) throws Exception {
        Map<String, ?> config = new Gson().fromJson(Files.readString(Path.of("service.json")), Map.class);
        channel = Grpc.newChannelBuilder(args[1], InsecureChannelCredentials.create()).maxInboundMessageSize(1 << 30)
            .defaultServiceConfig(config).build();
        switch (args[0]) {
            case "deadline" -> deadline();
            case "health" -> health();
            case "balance" -> balance();
            default -> rows(Integer.parseInt(args[2]), args[0].equals("stream"));
        }
        System.exit(0);
    }
}
