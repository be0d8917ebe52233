/* SPDX-License-Identifier: Apache-2.0
 *
 * Non-cryptographic hashes: the finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants of
 * Stafford's "Mix13"), and a byte hash that folds 8-byte little-endian words with it. Any thread.
 */
#ifndef HPS_BASE_HASH_H
#define HPS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define HPS_HASH_GOLDEN UINT64_C(0x9E3779B97F4A7C15)

#if defined(__CUDACC__) /* CUDA kernels use the same hash */
#define HPS_HASH_ANYWHERE __host__ __device__
#else
#define HPS_HASH_ANYWHERE
#endif

/* A bijection of the 64-bit integers; every input bit affects every output bit. */
HPS_HASH_ANYWHERE static inline uint64_t hps_mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* A random number, constant for the life of the process. Hash tables of keys from clients XOR it
 * into a key before hashing. Otherwise a client could choose keys that all collide. */
uint64_t hps_hash_secret(void);

/* 64-bit hash of `size` bytes. To hash several pieces, pass each result as `seed` of the next call.
 * The function must never change: hashes are stored on disk and in Redis. */
static inline uint64_t hps_hash_bytes(const void *data, size_t size, uint64_t seed)
{
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = hps_mix64(seed + HPS_HASH_GOLDEN + (uint64_t)size);

    while (size > 0) {
        size_t n = size < 8 ? size : 8;
        uint64_t word = 0;

        memcpy(&word, bytes, n);
        hash = hps_mix64((hash ^ word) + HPS_HASH_GOLDEN);
        bytes += n;
        size -= n;
    }
    return hash;
}

#endif
