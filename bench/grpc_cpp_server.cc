// SPDX-License-Identifier: Apache-2.0
//
// Peer of bench_grpc.c: ParameterServer/Lookup with libgrpc++'s callback API. The model name
// selects the reply: "a" 64 bytes, "b" 512 KB, "c" 13.6 MB of rows. With a "g" appended, the server
// gathers rows at random. Prints its port; ends when stdin does.
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#include "hps/v1/lookup.grpc.pb.h"

namespace
{

constexpr size_t kRowBytes = 512;
constexpr size_t kTableRows = 512 * 1024;

class Server final : public hps::v1::ParameterServer::CallbackService
{
  public:
    Server() : table_(kTableRows * kRowBytes, 'x') {}

    grpc::ServerUnaryReactor *Lookup(grpc::CallbackServerContext *context,
                                     const hps::v1::LookupRequest *request,
                                     hps::v1::LookupResponse *response) override
    {
        const std::string &model = request->model();
        size_t size = model[0] == 'a' ? 64 : model[0] == 'b' ? 524288 : 26562 * kRowBytes;
        std::string *rows = response->add_results()->mutable_rows();

        if (model.size() < 2) {
            rows->assign(table_.data(), size);
        } else {
            rows->resize(size);
            for (size_t at = 0; at < size; at += kRowBytes) {
                state_ = state_ * 6364136223846793005u + 1442695040888963407u;
                size_t row = (state_ >> 33) % kTableRows;
                memcpy(&(*rows)[at], &table_[row * kRowBytes], kRowBytes);
            }
        }
        grpc::ServerUnaryReactor *reactor = context->DefaultReactor();
        reactor->Finish(grpc::Status::OK);
        return reactor;
    }

  private:
    std::vector<char> table_;
    static thread_local uint64_t state_;
};

thread_local uint64_t Server::state_ = 1;

} // namespace

int main()
{
    Server service;
    grpc::ServerBuilder builder;
    int port = 0;

    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterService(&service);
    std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (!server) {
        return 1;
    }
    printf("%d\n", port);
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0) {
    }
    server->Shutdown();
    return 0;
}
