// SPDX-License-Identifier: Apache-2.0
//
// The comparison of bench_maps.c: hash maps of C++ from a key to a row number, with the libraries' own
// hash functions and allocators. All are used in the way that suits them best here: a block of keys is
// found first and its rows are prefetched, then they are copied.
#include <unordered_map>

#include <cstring>
#include <exception>

#ifdef HPS_BENCH_ABSL
#include <absl/container/flat_hash_map.h>
#endif
#ifdef HPS_BENCH_BOOST
#include <boost/unordered/unordered_flat_map.hpp>
#endif

#include "bench/bench_maps.h"

namespace {

constexpr uint32_t kBlock = 64;
constexpr uint32_t kLine = 64;

template <class Map> void *make(const uint64_t *keys, uint32_t n)
{
    try {
        Map *map = new Map;
        map->reserve(n);
        for (uint32_t i = 0; i < n; i++) {
            map->emplace(keys[i], i);
        }
        return map;
    } catch (const std::exception &) {
        return nullptr; // the program ends: nothing is taken apart
    }
}

template <class Map>
uint32_t get(const void *opaque, const bench_map_rows *rows, const uint64_t *keys, uint32_t n,
             uint8_t *out)
{
    const Map &map = *static_cast<const Map *>(opaque);
    const uint8_t *found[kBlock];
    uint32_t n_found = 0;

    for (uint32_t at = 0; at < n; at += kBlock) {
        uint32_t count = n - at < kBlock ? n - at : kBlock;
        for (uint32_t i = 0; i < count; i++) {
            auto place = map.find(keys[at + i]);
            found[i] = nullptr;
            if (place != map.end()) {
                found[i] = rows->data + static_cast<size_t>(place->second) * rows->row_bytes;
                for (uint32_t line = 0; line < rows->row_bytes; line += kLine) {
                    __builtin_prefetch(found[i] + line, 0, 2);
                }
                n_found++;
            }
        }
        for (uint32_t i = 0; i < count; i++) {
            if (found[i] != nullptr) {
                memcpy(out + static_cast<size_t>(at + i) * rows->row_bytes, found[i],
                       rows->row_bytes);
            }
        }
    }
    return n_found;
}

template <class Map> void destroy(void *opaque)
{
    delete static_cast<Map *>(opaque);
}

template <class Map> constexpr bench_map_kind kind(const char *name)
{
    return {name, make<Map>, get<Map>, destroy<Map>};
}

} // namespace

extern "C" const bench_map_kind bench_map_kinds[] = {
    kind<std::unordered_map<uint64_t, uint32_t>>("std::unordered_map"),
#ifdef HPS_BENCH_BOOST
    kind<boost::unordered_flat_map<uint64_t, uint32_t>>("boost flat map"),
#endif
#ifdef HPS_BENCH_ABSL
    kind<absl::flat_hash_map<uint64_t, uint32_t>>("absl flat map"),
#endif
    {nullptr, nullptr, nullptr, nullptr},
};
