/* SPDX-License-Identifier: Apache-2.0
 *
 * The operator HpsdRows: the lookups of hpsd.tensorflow without Python, so that other processes can
 * load a SavedModel. It is asynchronous: no thread of TensorFlow waits for a reply. Processes that
 * load a model also load this library: tf.load_op_library, or LD_PRELOAD.
 */
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/hpsd.h"
#include <tensorflow/core/framework/cancellation.h>
#include <tensorflow/core/framework/common_shape_fns.h>
#include <tensorflow/core/framework/op.h>
#include <tensorflow/core/framework/op_kernel.h>
#include <tensorflow/core/framework/shape_inference.h>

namespace
{

using tensorflow::AsyncOpKernel;
using tensorflow::CancellationManager;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

absl::Status failure(const hpsd_error &error)
{
    return absl::Status(static_cast<absl::StatusCode>(error.status), error.text);
}

/* The client for these addresses. Clients live until the process ends. The file that the
 * environment variable HPSD_TOKEN_FILE names has the token: models contain no secrets. */
absl::Status client_of(const std::string &addresses, hpsd_client **out_client)
{
    static std::mutex lock;
    static std::map<std::string, hpsd_client *> clients;
    std::lock_guard<std::mutex> held(lock);
    auto known = clients.find(addresses);
    if (known == clients.end()) {
        hpsd_options options = {};
        hpsd_client *made = nullptr;
        hpsd_error error;
        options.addresses = addresses.c_str();
        options.token_file = std::getenv("HPSD_TOKEN_FILE");
        if (hpsd_open(&options, &made, &error) != HPSD_OK) {
            return failure(error);
        }
        known = clients.emplace(addresses, made).first;
    }
    *out_client = known->second;
    return absl::OkStatus();
}

/* Ends a lookup when its step is cancelled, as by a timeout of the session. Until the lookup has an
 * id, it remembers this. Lives as long as the call or the callback of TensorFlow. */
class Cancel
{
  public:
    void started(hpsd_client *client, uint64_t id)
    {
        std::lock_guard<std::mutex> held(lock_);
        client_ = client;
        id_ = id;
        if (wanted_) {
            hpsd_cancel(client_, id_);
        }
    }

    void cancel()
    {
        std::lock_guard<std::mutex> held(lock_);
        wanted_ = true;
        if (client_ != nullptr) {
            hpsd_cancel(client_, id_);
        }
    }

  private:
    std::mutex lock_;
    hpsd_client *client_ = nullptr;
    uint64_t id_ = 0;
    bool wanted_ = false;
};

/* The keys of a lookup, and the memory that it borrows while it runs. */
struct Call {
    std::vector<int64_t> keys;
    std::vector<float> weights;
    std::vector<uint32_t> offsets; /* empty: one row for each key */
    hpsd_result result = {};
    OpKernelContext *context = nullptr;
    AsyncOpKernel::DoneCallback done;
    int64_t dim = 0;
    CancellationManager *manager = nullptr; /* may be NULL */
    tensorflow::CancellationToken token = 0;
};

/* Called on the thread of the client. */
void ended(void *ctx, const hpsd_reply *reply, const hpsd_error *error)
{
    std::unique_ptr<Call> call(static_cast<Call *>(ctx));
    if (call->manager != nullptr) {
        call->manager->TryDeregisterCallback(call->token);
    }
    if (reply == nullptr) {
        call->context->SetStatus(failure(*error));
    } else if (call->result.n_rows > 0 && call->result.dim != call->dim) {
        call->context->SetStatus(
            absl::InvalidArgumentError("got rows of " + std::to_string(call->result.dim) +
                                       " values, expected " + std::to_string(call->dim)));
    }
    call->done();
}

class HpsdRows : public AsyncOpKernel
{
  public:
    explicit HpsdRows(OpKernelConstruction *context) : AsyncOpKernel(context)
    {
        int64_t pooling, unknown;
        OP_REQUIRES_OK(context, context->GetAttr("addresses", &addresses_));
        OP_REQUIRES_OK(context, context->GetAttr("model", &model_));
        OP_REQUIRES_OK(context, context->GetAttr("table", &table_));
        OP_REQUIRES_OK(context, context->GetAttr("version", &version_));
        OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
        OP_REQUIRES_OK(context, context->GetAttr("pooling", &pooling));
        OP_REQUIRES_OK(context, context->GetAttr("unknown", &unknown));
        OP_REQUIRES_OK(context, context->GetAttr("timeout_us", &timeout_us_));
        OP_REQUIRES_OK(context, context->GetAttr("safe", &safe_));
        OP_REQUIRES_OK(context, context->GetAttr("fills", &fills_));
        OP_REQUIRES_OK(context, context->GetAttr("default_id", &default_id_));
        pooling_ = static_cast<hpsd_pooling>(pooling);
        unknown_ = static_cast<hpsd_unknown_key>(unknown);
    }

    void ComputeAsync(OpKernelContext *context, DoneCallback done) override
    {
        auto call = std::make_unique<Call>();
        Tensor *out = nullptr;
        hpsd_client *client = nullptr;
        auto shape = context->input(0).shape();
        call->context = context;
        call->done = std::move(done);
        call->dim = dim_;
        if (pooling_ == HPSD_POOLING_NONE) {
            auto ids = context->input(0).flat<int64_t>();
            call->keys.assign(ids.data(), ids.data() + ids.size());
        } else {
            OP_REQUIRES_OK_ASYNC(context, bags(context, &*call), call->done);
            shape = {static_cast<int64_t>(call->offsets.size()) - 1};
        }
        shape.AddDim(dim_);
        OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &out), call->done);
        if (out->NumElements() == 0) {
            call->done();
            return;
        }
        OP_REQUIRES_OK_ASYNC(context, client_of(addresses_, &client), call->done);
        start(client, std::move(call), out);
    }

  private:
    void start(hpsd_client *client, std::unique_ptr<Call> call, Tensor *out)
    {
        hpsd_query query = {};
        struct hpsd_lookup lookup = {};
        hpsd_error error;
        query.table = table_.c_str();
        query.keys = call->keys.data();
        query.n_keys = call->keys.size();
        query.rows = out->data();
        query.rows_size = out->TotalBytes();
        if (pooling_ != HPSD_POOLING_NONE) {
            query.pooling = pooling_;
            query.offsets = call->offsets.data();
            query.n_bags = call->offsets.size() - 1;
            query.weights = call->weights.empty() ? nullptr : call->weights.data();
        }
        lookup.model = model_.c_str();
        lookup.version = version_;
        lookup.queries = &query;
        lookup.n_queries = 1;
        lookup.unknown_key = unknown_;
        lookup.timeout_us = timeout_us_;
        lookup.results = &call->result;
        auto cancel = std::make_shared<Cancel>();
        uint64_t id = 0;
        call->manager = call->context->cancellation_manager();
        if (call->manager != nullptr) {
            call->token = call->manager->get_cancellation_token();
            OP_REQUIRES_ASYNC(
                call->context,
                call->manager->RegisterCallback(call->token, [cancel] { cancel->cancel(); }),
                absl::CancelledError("the step was cancelled"), call->done);
        }
        if (hpsd_lookup_start(client, &lookup, ended, &*call, &id, &error) == HPSD_OK) {
            call.release(); /* `ended` frees it */
            cancel->started(client, id);
        } else {
            ended(call.release(), nullptr, &error);
        }
    }

    /* What `prepare` of hpsd/tensorflow.py does: leave keys out, and fill empty bags. */
    absl::Status bags(OpKernelContext *context, Call *call) const
    {
        auto ids = context->input(0).flat<int64_t>();
        auto bag_of = context->input(1).flat<int64_t>();
        auto weights = context->input(3).flat<float>();
        int64_t n = ids.size(), n_bags = context->input(2).flat<int64_t>()(0), at = 0;
        bool weighted = weights.size() > 0;
        if (bag_of.size() != n || (weighted && weights.size() != n)) {
            return absl::InvalidArgumentError("weights: expected one for each id");
        }
        if (!safe_) {
            n_bags = n > 0 ? bag_of(n - 1) + 1 : 0;
        }
        if (n_bags > INT32_MAX) {
            return absl::InvalidArgumentError("ids: expected at most 2^31 - 1 rows");
        }
        call->offsets.push_back(0);
        for (int64_t bag = 0; bag < n_bags; bag++) {
            for (; at < n && bag_of(at) == bag; at++) {
                bool kept =
                    ids(at) >= 0 && (!weighted || pooling_ == HPSD_POOLING_SUM || weights(at) > 0);
                if (kept || !safe_) {
                    add(call, ids(at), weighted, weighted ? weights(at) : 1);
                }
            }
            if (fills_ && call->keys.size() == call->offsets.back()) {
                add(call, default_id_, weighted, 1);
            }
            call->offsets.push_back(static_cast<uint32_t>(call->keys.size()));
        }
        return at == n ? absl::OkStatus()
                       : absl::InvalidArgumentError("expected ascending rows of ids");
    }

    static void add(Call *call, int64_t key, bool weighted, float weight)
    {
        call->keys.push_back(key);
        if (weighted) {
            call->weights.push_back(weight);
        }
    }

    std::string addresses_, model_, table_;
    int64_t version_, dim_, default_id_, timeout_us_;
    bool safe_, fills_;
    hpsd_pooling pooling_;
    hpsd_unknown_key unknown_;
};

/* ids: of any shape without pooling, otherwise flat, with the bag of each id, the number of bags,
 * and a weight for each id or none. safe: as safe_embedding_lookup_sparse. fills: empty bags get
 * the row of default_id. */
REGISTER_OP("HpsdRows")
    .Input("ids: int64")
    .Input("bag_of: int64")
    .Input("n_bags: int64")
    .Input("weights: float")
    .Output("rows: float")
    .Attr("addresses: string")
    .Attr("model: string")
    .Attr("table: string")
    .Attr("version: int = 0")
    .Attr("dim: int")
    .Attr("pooling: int = 0")
    .Attr("unknown: int = 0")
    .Attr("timeout_us: int = 0")
    .Attr("safe: bool = false")
    .Attr("fills: bool = false")
    .Attr("default_id: int = 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name("HpsdRows").Device(tensorflow::DEVICE_CPU), HpsdRows);

} // namespace
