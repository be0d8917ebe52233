// SPDX-License-Identifier: Apache-2.0
//
// See listener.h.
#include "backends/rocksdb/listener.h"

#include <exception>
#include <memory>
#include <string>

#include <cxxabi.h>

#include <rocksdb/listener.h>
#include <rocksdb/utilities/object_registry.h>

namespace
{

#define SAME(ours, theirs) \
    static_assert(static_cast<int>(ours) == static_cast<int>(rocksdb::theirs), #theirs)
SAME(HPS_ROCKSDB_REASON_FLUSH, BackgroundErrorReason::kFlush);
SAME(HPS_ROCKSDB_REASON_COMPACTION, BackgroundErrorReason::kCompaction);
SAME(HPS_ROCKSDB_REASON_WAL, BackgroundErrorReason::kWriteCallback);
SAME(HPS_ROCKSDB_CODE_OK, Status::kOk);
SAME(HPS_ROCKSDB_CODE_CORRUPTION, Status::kCorruption);
SAME(HPS_ROCKSDB_CODE_IO_ERROR, Status::kIOError);
SAME(HPS_ROCKSDB_SUBCODE_NONE, Status::kNone);
SAME(HPS_ROCKSDB_SUBCODE_NO_SPACE, Status::kNoSpace);
SAME(HPS_ROCKSDB_SEVERITY_NONE, Status::kNoError);
SAME(HPS_ROCKSDB_SEVERITY_SOFT, Status::kSoftError);
SAME(HPS_ROCKSDB_SEVERITY_HARD, Status::kHardError);
SAME(HPS_ROCKSDB_SEVERITY_FATAL, Status::kFatalError);
SAME(HPS_ROCKSDB_SEVERITY_UNRECOVERABLE, Status::kUnrecoverableError);

struct sink {
    hps_rocksdb_event_fn *fn;
    void *ctx;
    bool made;
};

thread_local sink offered;

// Without a name, so that RocksDB does not write it into the database's OPTIONS.
class Listener final : public rocksdb::EventListener
{
  public:
    explicit Listener(const sink &to) : to_(to) {}

    void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status *error) override
    {
        tell(HPS_ROCKSDB_ERROR, static_cast<int>(reason), *error, nullptr);
    }

    void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason reason, rocksdb::Status error,
                              bool *) override
    {
        tell(HPS_ROCKSDB_RECOVERY_BEGUN, static_cast<int>(reason), error, nullptr);
    }

    void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo &info) override
    {
        tell(HPS_ROCKSDB_RECOVERY_ENDED, -1, info.new_bg_error, nullptr);
    }

    void OnCompactionCompleted(rocksdb::DB *, const rocksdb::CompactionJobInfo &info) override
    {
        if (!info.status.ok()) {
            tell(HPS_ROCKSDB_COMPACTION_FAILED, HPS_ROCKSDB_REASON_COMPACTION, info.status,
                 info.cf_name.c_str());
        }
    }

  private:
    void tell(hps_rocksdb_event_kind kind, int reason, const rocksdb::Status &status,
              const char *family) const
    {
        const std::string text = status.ToString();
        const hps_rocksdb_event event = {kind,
                                         reason,
                                         static_cast<int>(status.code()),
                                         static_cast<int>(status.subcode()),
                                         static_cast<int>(status.severity()),
                                         family,
                                         text.c_str()};
        to_.fn(to_.ctx, &event);
    }

    const sink to_;
};

rocksdb::EventListener *make(const std::string &, std::unique_ptr<rocksdb::EventListener> *guard,
                             std::string *)
{
    if (offered.fn == nullptr) {
        return nullptr;
    }
    auto *listener = new Listener(offered);
    guard->reset(listener);
    offered.made = true;
    return listener;
}

} // namespace

void hps_rocksdb_listener_offer(hps_rocksdb_event_fn *fn, void *ctx)
{
    static const auto &registered =
        rocksdb::ObjectLibrary::Default()->AddFactory<rocksdb::EventListener>(HPS_ROCKSDB_LISTENER,
                                                                              make);
    (void)registered;
    offered = {fn, ctx, false};
}

void hps_rocksdb_terminate_set(hps_rocksdb_terminate_fn *fn)
{
    static hps_rocksdb_terminate_fn *last;
    last = fn;
    std::set_terminate([] {
        const std::type_info *type = abi::__cxa_current_exception_type();
        last(type != nullptr ? type->name() : "");
    });
}

bool hps_rocksdb_listener_made(void)
{
    const bool made = offered.made;
    offered = {nullptr, nullptr, false};
    return made;
}
