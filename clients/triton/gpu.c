/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/triton/backend.h"

#include <dlfcn.h>
#include <pthread.h>

#define CUDART_NAMES "libcudart.so.13, libcudart.so.12, libcudart.so.11.0, libcudart.so"

enum { CUDA_COPY_ANY = 4 }; /* the addresses say where the memory is */

static int (*cuda_memcpy)(void *to, const void *from, size_t size, int kind);
static int (*cuda_stream_synchronize)(void *stream);
static const char *(*cuda_error_text)(int error);
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A server with a GPU has loaded the library already, so its own copy is tried first. */
static void load(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                                        "libcudart.so"};
    const size_t n = sizeof(names) / sizeof(*names);
    void *library = NULL;

    for (size_t i = 0; library == NULL && i < 2 * n; i++) {
        library = dlopen(names[i % n], RTLD_NOW | RTLD_LOCAL | (i < n ? RTLD_NOLOAD : 0));
    }
    if (library != NULL) {
        *(void **)&cuda_error_text = dlsym(library, "cudaGetErrorString");
        *(void **)&cuda_stream_synchronize = dlsym(library, "cudaStreamSynchronize");
        *(void **)&cuda_memcpy = dlsym(library, "cudaMemcpy");
    }
}

hps_status hps_triton_gpu_copy(void *to, const void *from, size_t size, struct hps_error *err)
{
    pthread_once(&once, load);
    if (cuda_memcpy == NULL || cuda_stream_synchronize == NULL) {
        return hps_error_set(err, HPS_UNIMPLEMENTED,
                             "it is in GPU memory, and no CUDA runtime was found (" CUDART_NAMES
                             ")");
    }
    int failed = cuda_memcpy(to, from, size, CUDA_COPY_ANY);
    if (failed == 0) { /* to a GPU, the last bytes may still be in flight */
        failed = cuda_stream_synchronize(NULL);
    }
    if (failed != 0) {
        return hps_error_set(err, HPS_INTERNAL, "it is in GPU memory, and cudaMemcpy failed: %s",
                             cuda_error_text == NULL ? "unknown error" : cuda_error_text(failed));
    }
    return HPS_OK;
}
