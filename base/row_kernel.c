/* SPDX-License-Identifier: Apache-2.0
 *
 * Selection of the kernel, once for each process. Any thread.
 */
#include "base/row_kernel.h"

#include <stdatomic.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

static const struct hps_row_kernel *const kernels[] = {
#ifdef __x86_64__
    &hps_row_kernel_avx512,
    &hps_row_kernel_avx2,
#endif
    &hps_row_kernel_scalar,
};

#ifdef __x86_64__
bool hps_row_cpu_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const struct hps_row_kernel *const *hps_row_kernels(unsigned *out_n)
{
    *out_n = sizeof(kernels) / sizeof(kernels[0]);
    return kernels;
}

const struct hps_row_kernel *hps_row_kernel(void)
{
    static _Atomic(const struct hps_row_kernel *) best;
    const struct hps_row_kernel *kernel = atomic_load_explicit(&best, memory_order_relaxed);

    if (kernel == NULL) { /* concurrent threads find the same kernel */
        const struct hps_row_kernel *const *at = kernels;
        while (!(*at)->runs()) {
            at++;
        }
        kernel = *at;
        atomic_store_explicit(&best, kernel, memory_order_relaxed);
    }
    return kernel;
}
