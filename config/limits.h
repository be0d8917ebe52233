/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory and CPUs of this machine, or of the control group of the daemon. Read once at start; any
 * thread.
 */
#ifndef HPS_CONFIG_LIMITS_H
#define HPS_CONFIG_LIMITS_H

#include <stdint.h>

/* Bytes of memory that this process may use: the minimum of RAM, the limit of its cgroup and of
 * those above it. Never 0. */
uint64_t hps_limits_memory_bytes(void);
/* CPUs that this process may use: the minimum of the affinity mask and the cgroup quota (rounded
 * up). Never 0. */
uint32_t hps_limits_cpus(void);

/* The same with another root directory than "/", for tests. */
uint64_t hps_limits_memory_bytes_at(const char *root);
uint32_t hps_limits_cpus_at(const char *root);

#endif
