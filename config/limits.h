/* SPDX-License-Identifier: Apache-2.0
 *
 * What this machine, or the control group that the daemon runs in, has. Read once at start; any
 * thread.
 */
#ifndef HPS_CONFIG_LIMITS_H
#define HPS_CONFIG_LIMITS_H

#include <stdint.h>

/* Bytes of memory this process may use: min(RAM, limits of its cgroup and those above it). Never 0.
 */
uint64_t hps_limits_memory_bytes(void);
/* CPUs this process may use: min(affinity mask, cgroup quota rounded up). Never 0. */
uint32_t hps_limits_cpus(void);

/* The same with another root directory than "/": for tests. */
uint64_t hps_limits_memory_bytes_at(const char *root);
uint32_t hps_limits_cpus_at(const char *root);

#endif
