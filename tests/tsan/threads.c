/* SPDX-License-Identifier: Apache-2.0
 *
 * C11 threads over POSIX threads, for ThreadSanitizer builds. librdkafka uses <threads.h>, whose
 * functions ThreadSanitizer does not intercept: it knows nothing of such a thread, which then
 * crashes in its allocator, nor of such a mutex. Here they become the functions that it knows.
 * Found before libc's by every program that links it. In glibc the types are the same ones.
 */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <threads.h>

_Static_assert(sizeof(mtx_t) == sizeof(pthread_mutex_t), "a mtx_t is a pthread_mutex_t");
_Static_assert(sizeof(cnd_t) == sizeof(pthread_cond_t), "a cnd_t is a pthread_cond_t");
_Static_assert(sizeof(thrd_t) == sizeof(pthread_t), "a thrd_t is a pthread_t");
_Static_assert(sizeof(once_flag) == sizeof(pthread_once_t), "a once_flag is a pthread_once_t");

static int result_of(int error_number)
{
    return error_number == 0           ? thrd_success
           : error_number == EBUSY     ? thrd_busy
           : error_number == ENOMEM    ? thrd_nomem
           : error_number == ETIMEDOUT ? thrd_timedout
                                       : thrd_error;
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *arg)
{
    /* Its int comes back in the register of a pointer; thrd_join takes the low half. */
    void *(*start)(void *) = (void *(*)(void *))(void (*)(void))run;

    return result_of(pthread_create((pthread_t *)thread, NULL, start, arg));
}

int thrd_join(thrd_t thread, int *out_result)
{
    void *value = NULL;
    int error_number = pthread_join((pthread_t)thread, &value);

    if (error_number == 0 && out_result != NULL) {
        *out_result = (int)(intptr_t)value;
    }
    return result_of(error_number);
}

int thrd_detach(thrd_t thread)
{
    return result_of(pthread_detach((pthread_t)thread));
}

int mtx_init(mtx_t *mutex, int type)
{
    pthread_mutexattr_t attributes;

    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, (type & mtx_recursive) != 0 ? PTHREAD_MUTEX_RECURSIVE
                                                                       : PTHREAD_MUTEX_NORMAL);
    int error_number = pthread_mutex_init((pthread_mutex_t *)mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    return result_of(error_number);
}

void mtx_destroy(mtx_t *mutex)
{
    pthread_mutex_destroy((pthread_mutex_t *)mutex);
}

int mtx_lock(mtx_t *mutex)
{
    return result_of(pthread_mutex_lock((pthread_mutex_t *)mutex));
}

int mtx_trylock(mtx_t *mutex)
{
    return result_of(pthread_mutex_trylock((pthread_mutex_t *)mutex));
}

int mtx_unlock(mtx_t *mutex)
{
    return result_of(pthread_mutex_unlock((pthread_mutex_t *)mutex));
}

int cnd_init(cnd_t *condition)
{
    return result_of(pthread_cond_init((pthread_cond_t *)condition, NULL));
}

void cnd_destroy(cnd_t *condition)
{
    pthread_cond_destroy((pthread_cond_t *)condition);
}

int cnd_signal(cnd_t *condition)
{
    return result_of(pthread_cond_signal((pthread_cond_t *)condition));
}

int cnd_broadcast(cnd_t *condition)
{
    return result_of(pthread_cond_broadcast((pthread_cond_t *)condition));
}

int cnd_wait(cnd_t *condition, mtx_t *mutex)
{
    return result_of(pthread_cond_wait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex));
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *end)
{
    return result_of(
        pthread_cond_timedwait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, end));
}

void call_once(once_flag *flag, void (*run)(void))
{
    pthread_once((pthread_once_t *)flag, run);
}
