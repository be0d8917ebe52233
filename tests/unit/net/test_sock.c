/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets: listening on free and taken addresses, connecting, credentials, sockets of a service
 * manager.
 */
#include "net/sock.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/heap.h"
#include "tests/lib/tmpdir_fixture.h"

static int teardown_empty(void **state)
{
    assert_int_equal(hps_tmpdir_entries(&dir, "."), 0); /* all sockets were removed */
    return teardown(state);
}

static void parse(const char *text, struct hps_addr *addr)
{
    assert_int_equal(hps_addr_parse(text, addr, NULL), HPS_OK);
}

static void unix_addr(const char *name, struct hps_addr *addr)
{
    char text[HPS_TMPDIR_PATH_MAX + 8];
    snprintf(text, sizeof(text), "unix:%s", hps_tmpdir_join(&dir, name));
    parse(text, addr);
}

static int listen_on(const struct hps_addr *addr)
{
    int fd = -1;
    struct hps_error err = {0};
    hps_status status = hps_sock_listen(addr, 0600, &fd, &err);
    if (status != HPS_OK) {
        fail_msg("%s", err.text);
    }
    return fd;
}

static void wait_for(int fd, short events)
{
    struct pollfd poll_fd = {fd, events, 0};
    assert_int_equal(poll(&poll_fd, 1, 10000), 1);
}

static int accept_one(int listen_fd)
{
    int fd = -1;
    wait_for(listen_fd, POLLIN);
    assert_int_equal(hps_sock_accept(listen_fd, &fd), HPS_OK);
    return fd;
}

static int int_option(int fd, int level, int option)
{
    int value = -1;
    socklen_t size = sizeof(value);
    assert_int_equal(getsockopt(fd, level, option, &value, &size), 0);
    return value;
}

static void test_listen_when_tcp_then_connects_and_options_are_set(void **state)
{
    (void)state;
    struct hps_addr addr, bound;
    parse("127.0.0.1:0", &addr);
    int listen_fd = listen_on(&addr);
    int fd = -1;
    int none = -1;
    assert_int_equal(hps_sock_accept(listen_fd, &none), HPS_AGAIN);
    assert_int_equal(hps_sock_local(listen_fd, &bound), HPS_OK);
    assert_string_equal(bound.host, "127.0.0.1");
    assert_true(bound.port != 0);
    assert_int_equal(hps_sock_connect(&bound, &fd, NULL), HPS_OK);
    int accepted = accept_one(listen_fd);
    wait_for(fd, POLLOUT);
    assert_int_equal(hps_sock_connected(fd, NULL), HPS_OK);
    assert_true(int_option(accepted, IPPROTO_TCP, TCP_NODELAY));
    assert_true(int_option(accepted, SOL_SOCKET, SO_KEEPALIVE));
    assert_true(int_option(fd, IPPROTO_TCP, TCP_NODELAY));
    assert_false(int_option(listen_fd, SOL_SOCKET, SO_REUSEPORT));
    assert_true(fcntl(accepted, F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(accepted, F_GETFD) & FD_CLOEXEC);
    char peer[HPS_ADDR_TEXT_MAX];
    struct hps_addr local;
    char text[HPS_ADDR_TEXT_MAX];
    assert_int_equal(hps_sock_local(fd, &local), HPS_OK);
    assert_string_equal(hps_sock_peer(accepted, peer, sizeof(peer)),
                        hps_addr_print(&local, text, sizeof(text)));
    struct hps_sock_cred cred;
    assert_false(hps_sock_peer_cred(accepted, &cred));
    gid_t *groups = NULL;
    size_t n_groups = 0;
    gid_t of_file = 0;
    assert_int_equal(hps_sock_peer_groups(accepted, &groups, &n_groups), HPS_IO);
    assert_false(hps_sock_file_group(accepted, &of_file));
    close(fd);
    close(accepted);
    close(listen_fd);
}

static void test_listen_when_address_is_in_use_then_busy_with_the_address(void **state)
{
    (void)state;
    struct hps_addr addr, bound;
    parse("127.0.0.1:0", &addr);
    int fd = listen_on(&addr);
    int other = -1;
    struct hps_error err = {0};
    char text[HPS_ADDR_TEXT_MAX];
    assert_int_equal(hps_sock_local(fd, &bound), HPS_OK);
    assert_int_equal(hps_sock_listen(&bound, 0, &other, &err), HPS_BUSY);
    assert_int_equal(other, -1);
    assert_non_null(strstr(err.text, hps_addr_print(&bound, text, sizeof(text))));
    close(fd);
}

static void test_listen_when_no_such_interface_then_unavailable(void **state)
{
    (void)state;
    struct hps_addr addr;
    struct hps_error err = {0};
    int fd = -1;
    parse("192.0.2.1:0", &addr);
    assert_int_equal(hps_sock_listen(&addr, 0, &fd, &err), HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "192.0.2.1:0"));
}

static void test_listen_when_unix_then_mode_and_credentials(void **state)
{
    (void)state;
    struct hps_addr addr;
    struct stat st;
    int fd = -1;
    unix_addr("a.sock", &addr);
    mode_t mask = umask(0077);
    assert_int_equal(hps_sock_listen(&addr, 0660, &fd, NULL), HPS_OK);
    umask(mask);
    assert_int_equal(stat(addr.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    int client = -1;
    assert_int_equal(hps_sock_connect(&addr, &client, NULL), HPS_OK);
    assert_int_equal(hps_sock_connected(client, NULL), HPS_OK);
    int accepted = accept_one(fd);
    struct hps_sock_cred cred;
    assert_true(hps_sock_peer_cred(accepted, &cred));
    gid_t *groups = NULL;
    size_t n_groups = 0;
    gid_t mine[256];
    int n_mine = getgroups(256, mine);
    assert_int_equal(hps_sock_peer_groups(accepted, &groups, &n_groups), HPS_OK);
    assert_int_equal(n_groups, n_mine + 1);
    assert_int_equal(groups[0], getgid());
    assert_memory_equal(groups + 1, mine, (size_t)n_mine * sizeof(gid_t));
    hps_free(groups);
    gid_t of_file = (gid_t)-1;
    assert_true(hps_sock_file_group(accepted, &of_file));
    assert_int_equal(of_file, getegid());
    assert_int_equal(cred.pid, getpid());
    assert_int_equal(cred.uid, geteuid());
    char peer[64];
    char want[64];
    snprintf(want, sizeof(want), "unix:pid=%ld,uid=%lu,gid=%lu", (long)getpid(),
             (unsigned long)geteuid(), (unsigned long)getegid());
    assert_string_equal(hps_sock_peer(accepted, peer, sizeof(peer)), want);
    close(client);
    close(accepted);
    close(fd);
    unlink(addr.path);
}

static void test_listen_when_unix_socket_exists_then_busy_or_replaced_if_stale(void **state)
{
    (void)state;
    struct hps_addr addr;
    struct hps_error err = {0};
    int second = -1;
    unix_addr("b.sock", &addr);
    int fd = listen_on(&addr);
    assert_int_equal(hps_sock_listen(&addr, 0600, &second, &err), HPS_BUSY);
    assert_non_null(strstr(err.text, addr.path));
    close(fd); /* the file remains, as after a crash */
    fd = listen_on(&addr);
    close(fd);
    unlink(addr.path);
}

static void test_listen_when_unix_path_is_a_file_then_busy_and_kept(void **state)
{
    (void)state;
    struct hps_addr addr;
    struct stat st;
    int fd = -1;
    unix_addr("precious", &addr);
    int file = open(addr.path, O_CREAT | O_WRONLY, 0600);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(hps_sock_listen(&addr, 0600, &fd, NULL), HPS_BUSY);
    assert_int_equal(lstat(addr.path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    unlink(addr.path);
}

static void test_connect_when_refused_then_unavailable(void **state)
{
    (void)state;
    struct hps_addr addr, bound;
    struct hps_error err = {0};
    int fd = -1;
    parse("127.0.0.1:0", &addr);
    int listen_fd = listen_on(&addr);
    assert_int_equal(hps_sock_local(listen_fd, &bound), HPS_OK);
    close(listen_fd);
    hps_status status = hps_sock_connect(&bound, &fd, &err);
    if (status == HPS_OK) { /* loopback may refuse in connect or later */
        wait_for(fd, POLLOUT);
        status = hps_sock_connected(fd, &err);
        close(fd);
    }
    assert_int_equal(status, HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, "refused"));
    unix_addr("nobody", &addr);
    assert_int_equal(hps_sock_connect(&addr, &fd, &err), HPS_UNAVAILABLE);
    assert_non_null(strstr(err.text, addr.path));
}

/* One address of the name fails at once, like an address without a route. */
static void test_connect_when_an_address_fails_at_once_then_next_address_connects(void **state)
{
    (void)state;
    struct hps_addr nobody, addr, bound;
    struct hps_places places, other;
    struct hps_error err = {0};
    int fd = -1;
    unix_addr("nobody", &nobody);
    parse("127.0.0.1:0", &addr);
    int listen_fd = listen_on(&addr);
    assert_int_equal(hps_sock_local(listen_fd, &bound), HPS_OK);
    assert_int_equal(hps_addr_resolve(&bound, false, &other, NULL), HPS_OK);
    for (uint32_t first = 0; first < 4; first++) {
        assert_int_equal(hps_addr_resolve(&nobody, false, &places, NULL), HPS_OK);
        places.items[places.n++] = other.items[0];
        places.first = first;
        assert_int_equal(hps_sock_connect_next(&nobody, &places, &fd, &err), HPS_OK);
        assert_int_equal(places.n_tried, 2 - first % 2);
        close(accept_one(listen_fd));
        close(fd);
        if (first % 2 == 1) { /* only the address that fails is left */
            assert_int_equal(hps_sock_connect_next(&nobody, &places, &fd, &err), HPS_UNAVAILABLE);
            assert_non_null(strstr(err.text, nobody.path));
        }
        assert_int_equal(hps_sock_connect_next(&nobody, &places, &fd, &err), HPS_UNAVAILABLE);
    }
    close(listen_fd);
}

/* ---- inherited sockets: tested in child processes, which can use descriptors 3 and 4 --------- */

static int child_of(int (*body)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        _exit(body());
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void set_env(long pid, const char *fds, const char *names)
{
    char text[32];
    snprintf(text, sizeof(text), "%ld", pid);
    setenv("LISTEN_PID", text, 1);
    setenv("LISTEN_FDS", fds, 1);
    names ? setenv("LISTEN_FDNAMES", names, 1) : unsetenv("LISTEN_FDNAMES");
}

static struct hps_sock_inherited found[HPS_SOCK_INHERITED_MAX];
static unsigned n_found;

static int open_listeners(void)
{
    int fds[2];
    for (int i = 0; i < 2; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (fds[i] < 0 || listen(fds[i], 1) != 0) {
            return -1;
        }
        fds[i] = fcntl(fds[i], F_DUPFD, 20);
    }
    return dup2(fds[0], 3) == 3 && dup2(fds[1], 4) == 4 ? 0 : -1;
}

static int body_two(void)
{
    if (open_listeners() != 0) {
        return 10;
    }
    set_env(getpid(), "2", "grpc:admin");
    if (hps_sock_inherit(found, &n_found, NULL) != HPS_OK || n_found != 2) {
        return 11;
    }
    bool names = strcmp(found[0].name, "grpc") == 0 && strcmp(found[1].name, "admin") == 0;
    bool flags = (fcntl(3, F_GETFD) & FD_CLOEXEC) && (fcntl(4, F_GETFL) & O_NONBLOCK);
    return names && flags && found[0].fd == 3 && found[1].fd == 4 && !getenv("LISTEN_FDS") ? 0 : 12;
}

static int body_not_for_us(void)
{
    n_found = 9;
    set_env((long)getpid() + 1, "2", NULL);
    return hps_sock_inherit(found, &n_found, NULL) == HPS_OK && n_found == 0 ? 0 : 1;
}

static int body_not_a_listener(void)
{
    struct hps_error err = {0};
    dup2(open("/dev/null", O_RDONLY), 3);
    set_env(getpid(), "1", NULL);
    n_found = 9;
    return hps_sock_inherit(found, &n_found, &err) == HPS_INVALID && n_found == 9 &&
                   strstr(err.text, "LISTEN_FDS")
               ? 0
               : 1;
}

static int body_bad_counts(void)
{
    static const char *const counts[] = {"", "x", "2x", "17", "-1", "99999999999999999999"};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        set_env(getpid(), counts[i], NULL);
        if (hps_sock_inherit(found, &n_found, NULL) != HPS_INVALID) {
            return 1 + (int)i;
        }
    }
    return 0;
}

static void test_inherit_when_two_sockets_then_both_with_names(void **state)
{
    (void)state;
    assert_int_equal(child_of(body_two), 0);
}

static void test_inherit_when_for_another_process_then_no_sockets(void **state)
{
    (void)state;
    assert_int_equal(child_of(body_not_for_us), 0);
}

static void test_inherit_when_malformed_or_not_listening_then_invalid(void **state)
{
    (void)state;
    assert_int_equal(child_of(body_not_a_listener), 0);
    assert_int_equal(child_of(body_bad_counts), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listen_when_tcp_then_connects_and_options_are_set),
        cmocka_unit_test(test_listen_when_address_is_in_use_then_busy_with_the_address),
        cmocka_unit_test(test_listen_when_no_such_interface_then_unavailable),
        cmocka_unit_test(test_listen_when_unix_then_mode_and_credentials),
        cmocka_unit_test(test_listen_when_unix_socket_exists_then_busy_or_replaced_if_stale),
        cmocka_unit_test(test_listen_when_unix_path_is_a_file_then_busy_and_kept),
        cmocka_unit_test(test_connect_when_refused_then_unavailable),
        cmocka_unit_test(test_connect_when_an_address_fails_at_once_then_next_address_connects),
        cmocka_unit_test(test_inherit_when_two_sockets_then_both_with_names),
        cmocka_unit_test(test_inherit_when_for_another_process_then_no_sockets),
        cmocka_unit_test(test_inherit_when_malformed_or_not_listening_then_invalid),
    };
    return cmocka_run_group_tests(tests, setup, teardown_empty);
}
