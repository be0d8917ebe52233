// SPDX-License-Identifier: Apache-2.0
//
// grpc-go as a client of hpsd. test_clients.py describes the commands.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"example/hpsv1"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

const patience = 60 * time.Second

var input = bufio.NewReader(os.Stdin)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func connect(target string) *grpc.ClientConn {
	config, err := os.ReadFile("service.json")
	must(err)
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1 << 30)), grpc.WithDefaultServiceConfig(string(config))}
	if port, ok := strings.CutPrefix(target, "dns:///two:"); ok { // a name with two addresses
		dns := manual.NewBuilderWithScheme("dns")
		dns.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: "127.0.0.1:" + port}, {Addr: "127.0.0.2:" + port}}})
		options = append(options, grpc.WithResolvers(dns))
	}
	conn, err := grpc.NewClient(target, options...)
	must(err)
	return conn
}

func request(n int) *hpsv1.LookupRequest {
	keys := []byte{}
	for key := range n {
		keys = binary.LittleEndian.AppendUint64(keys, uint64(key))
	}
	return &hpsv1.LookupRequest{Model: "default", Queries: []*hpsv1.TableQuery{{Table: "items", Keys: keys}}}
}

func lookup(conn *grpc.ClientConn, n int, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	reply, err := hpsv1.NewParameterServerClient(conn).Lookup(ctx, request(n))
	if err != nil {
		return nil, err
	}
	return reply.Results[0].Rows, nil
}

func stream(conn *grpc.ClientConn, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	replies, err := hpsv1.NewParameterServerClient(conn).LookupStream(ctx, request(n))
	must(err)
	hash, messages := sha256.New(), 0
	for reply, err := replies.Recv(); err == nil; reply, err = replies.Recv() {
		hash.Write(reply.Results[0].Rows)
		messages++
	}
	fmt.Printf("%x %d\n", hash.Sum(nil), messages)
}

func deadline(conn *grpc.ClientConn) {
	for _, limit := range []time.Duration{patience, 200 * time.Millisecond, patience} {
		input.ReadString('\n')
		_, err := lookup(conn, 3, limit)
		fmt.Println(status.Code(err))
	}
}

func health(conn *grpc.ClientConn) {
	client := grpc_health_v1.NewHealthClient(conn)
	reply, err := client.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	must(err)
	fmt.Println(reply.Status)
	watch, err := client.Watch(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	must(err)
	for {
		reply, err := watch.Recv()
		if err != nil {
			fmt.Println(status.Code(err))
			return
		}
		fmt.Println(reply.Status)
	}
}

func balance(conn *grpc.ClientConn) {
	var ended atomic.Bool
	failures := make(chan int)
	for range 4 {
		go func() {
			failed := 0
			for !ended.Load() {
				if _, err := lookup(conn, 3, patience); err != nil {
					log.Print(err)
					failed++
				}
			}
			failures <- failed
		}()
	}
	input.ReadString('\n')
	ended.Store(true)
	fmt.Println(<-failures + <-failures + <-failures + <-failures)
}

func main() {
	conn := connect(os.Args[2])
	n, _ := strconv.Atoi(os.Args[3])
	switch os.Args[1] {
	case "lookup":
		rows, err := lookup(conn, n, patience)
		must(err)
		fmt.Printf("%x 1\n", sha256.Sum256(rows))
	case "stream":
		stream(conn, n)
	case "deadline":
		deadline(conn)
	case "health":
		health(conn)
	case "balance":
		balance(conn)
	}
}
