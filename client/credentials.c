/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads tokens, makes TLS contexts, and keeps tokens from networks without TLS. Any thread.
 */
#include "client/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "net/addr.h"
#include "net/tls.h"

/* Characters of a token that `text` begins with. */
static size_t token_size(const char *text, size_t size)
{
    size_t n = 0;

    while (n < size && text[n] > ' ' && text[n] <= '~') {
        n++;
    }
    return n;
}

bool hps_client_token_is_plain(const char *token)
{
    size_t size = strlen(token);

    return size > 0 && size < HPS_CLIENT_TOKEN_BYTES_MAX && token_size(token, size) == size;
}

hps_status hps_client_token_read(const char *path, char token[HPS_CLIENT_TOKEN_BYTES_MAX + 1],
                                 struct hps_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        hps_status status = errno == ENOENT   ? HPS_NOT_FOUND
                            : errno == EACCES ? HPS_PERMISSION
                                              : HPS_IO;
        return hps_error_set(err, status, "token file %s: %s", path, strerror(errno));
    }
    ssize_t n;
    do {
        n = read(fd, token, HPS_CLIENT_TOKEN_BYTES_MAX);
    } while (n < 0 && errno == EINTR);
    int read_errno = errno;
    close(fd);
    if (n < 0) {
        return hps_error_set(err, HPS_IO, "token file %s: %s", path, strerror(read_errno));
    }
    size_t size = token_size(token, (size_t)n);
    if (size == 0 || size == HPS_CLIENT_TOKEN_BYTES_MAX ||
        (size < (size_t)n && token[size] != '\n' && token[size] != '\r')) {
        return hps_error_set(err, HPS_INVALID,
                             "token file %s: expected one line of 1 to %d printable characters "
                             "without spaces",
                             path, HPS_CLIENT_TOKEN_BYTES_MAX - 1);
    }
    token[size] = '\0';
    return HPS_OK;
}

hps_status hps_client_tls_open(const struct hps_client_tls *options, const char *address,
                               struct hps_tls **out_tls, struct hps_error *err)
{
    const struct hps_tls_options tls = {
        .cert_file = options->cert,
        .key_file = options->key,
        .ca_file = options->ca,
        .server_name = options->name,
    };

    *out_tls = NULL;
    if (!options->on && options->ca == NULL && options->cert == NULL && options->key == NULL &&
        options->name == NULL) {
        return HPS_OK;
    }
    if (options->cert == NULL && options->key != NULL) {
        return hps_error_set(err, HPS_INVALID, "a TLS key without its certificate");
    }
    hps_status status = hps_tls_new(&tls, out_tls, err);
    /* Unix sockets use no TLS; the options are for another address of the program. */
    if (status == HPS_OK && strncmp(address, "unix:", 5) == 0) {
        hps_tls_unref(*out_tls);
        *out_tls = NULL;
    }
    return status;
}

hps_status hps_client_token_check(const char *address, const char *option, struct hps_error *err)
{
    struct hps_addr addr;

    if (hps_addr_parse_peer(address, &addr, NULL) != HPS_OK || addr.is_unix ||
        hps_addr_is_loopback(&addr)) {
        return HPS_OK; /* a malformed address is rejected later */
    }
    return hps_error_set(err, HPS_INVALID,
                         "token: %s is another host, and others on the network could read the "
                         "token without TLS; use TLS, or %s",
                         address, option);
}
