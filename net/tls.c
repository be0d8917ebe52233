/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS with OpenSSL 3. A context is an immutable SSL_CTX, which a reload replaces under a lock.
 * Sessions keep the context with which they began. Contexts: any thread; sessions: the thread of
 * their loop.
 */
#include "net/tls.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/heap.h"
#include "base/lock.h"

enum { NAMES_MAX = 64, NAME_BYTES_MAX = 256 }; /* of a certificate */

struct hps_tls {
    atomic_uint refs;
    bool server;
    bool any_protocol;
    char *server_name;    /* NULL: the `host` of the session */
    struct hps_lock lock; /* protects ctx */
    SSL_CTX *ctx;
};

enum tls_phase {
    TLS_HANDSHAKE,
    TLS_ESTABLISHED,
    TLS_BROKEN, /* after a fatal error: SSL_shutdown must not be called */
};

struct hps_tls_session {
    SSL *ssl;
    struct hps_tls *tls;
    char *names;          /* of the peer's certificate, NUL-terminated each, then an empty one */
    enum tls_phase phase; /* only increases */
};

static void phase_set(struct hps_tls_session *session, enum tls_phase to)
{
    HPS_ASSERT(to >= session->phase && to <= TLS_BROKEN);
    session->phase = to;
}

static const unsigned char alpn_h2[] = {2, 'h', '2'};
static const unsigned char alpn_http1[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

static pthread_once_t signal_once = PTHREAD_ONCE_INIT;

static void ignore_sigpipe(void)
{
    struct sigaction action;
    if (sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL) {
        action.sa_handler = SIG_IGN;
        sigaction(SIGPIPE, &action, NULL);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* The first entry of this thread's queue has the cause; the rest are its callers. Clears the
 * queue. */
static const char *openssl_reason(char *text, size_t capacity)
{
    unsigned long code = ERR_get_error();
    const char *reason = code ? ERR_reason_error_string(code) : NULL;
    if (reason) {
        snprintf(text, capacity, "%s", reason);
    } else if (code && ERR_SYSTEM_ERROR(code)) {
        snprintf(text, capacity, "%s", strerror(ERR_GET_REASON(code)));
    } else {
        snprintf(text, capacity, "%s", code ? "OpenSSL error" : "unknown error");
    }
    ERR_clear_error();
    return text;
}

static hps_status file_error(struct hps_error *err, const char *what, const char *file)
{
    char reason[200];
    unsigned long code = ERR_peek_error();
    hps_status status = code && ERR_SYSTEM_ERROR(code) ? HPS_IO : HPS_INVALID;
    return hps_error_set(err, status, "%s '%s': %s", what, file,
                         openssl_reason(reason, sizeof(reason)));
}

/* ---- contexts -------------------------------------------------------------------------------- */

static const struct hps_tls_names plain_names = {.cert_file = "TLS certificate",
                                                 .key_file = "TLS key",
                                                 .ca_file = "TLS CA",
                                                 .crl_file = "TLS CRL",
                                                 .ciphers = "TLS ciphers",
                                                 .ciphersuites = "TLS ciphersuites"};

static const struct hps_tls_names *names_in(const struct hps_tls_options *options)
{
    return options->names ? options->names : &plain_names;
}

static int select_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_size,
                       const unsigned char *in, unsigned in_size, void *ctx)
{
    const unsigned char *ours = ctx;
    unsigned char *chosen = NULL;
    (void)ssl;
    if (SSL_select_next_proto(&chosen, out_size, ours, 1u + ours[0], in, in_size) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* An encrypted key must not make a daemon wait for a passphrase at a terminal. */
static int no_passphrase(char *text, int capacity, int writing, void *ctx)
{
    (void)text;
    (void)capacity;
    (void)writing;
    (void)ctx;
    return 0;
}

static hps_status load_own(SSL_CTX *ctx, const struct hps_tls_options *options,
                           struct hps_error *err)
{
    const char *key_file = options->key_file ? options->key_file : options->cert_file;
    const struct hps_tls_names *names = names_in(options);
    if (!options->cert_file) {
        return options->server ? hps_error_set(err, HPS_INVALID, "TLS: a server needs cert_file")
                               : HPS_OK;
    }
    if (SSL_CTX_use_certificate_chain_file(ctx, options->cert_file) != 1) {
        return file_error(err, names->cert_file, options->cert_file);
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, key_file, SSL_FILETYPE_PEM) != 1) {
        return file_error(err, options->key_file ? names->key_file : names->cert_file, key_file);
    }
    if (SSL_CTX_check_private_key(ctx) != 1) {
        return file_error(err, options->key_file ? names->key_file : names->cert_file, key_file);
    }
    return HPS_OK;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static hps_status load_cas(SSL_CTX *ctx, const struct hps_tls_options *options,
                           struct hps_error *err)
{
    const struct hps_tls_names *names = names_in(options);
    if (!options->ca_file) {
        if (!options->server && SSL_CTX_set_default_verify_paths(ctx) != 1) {
            return file_error(err, "TLS CA certificates", "of the system");
        }
    } else if (!options->server && is_directory(options->ca_file)) {
        if (SSL_CTX_load_verify_dir(ctx, options->ca_file) != 1) {
            return file_error(err, names->ca_file, options->ca_file);
        }
    } else if (SSL_CTX_load_verify_file(ctx, options->ca_file) != 1) {
        return file_error(err, names->ca_file, options->ca_file);
    } else if (options->server) {
        STACK_OF(X509_NAME) *subjects = SSL_load_client_CA_file(options->ca_file);
        if (!subjects) {
            return file_error(err, names->ca_file, options->ca_file);
        }
        SSL_CTX_set_client_CA_list(ctx, subjects);
    }
    if (!options->server) {
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    } else if (options->ca_file) {
        int fail = options->peer_optional ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
        SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | fail, NULL);
        /* A client that resumes a session presents no certificate. Each resumption makes a new
         * session, so an expired or revoked certificate would stay valid. */
        SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
        SSL_CTX_set_num_tickets(ctx, 0);
    }
    return HPS_OK;
}

static hps_status load_crl(SSL_CTX *ctx, const struct hps_tls_options *options,
                           struct hps_error *err)
{
    X509_STORE *store = SSL_CTX_get_cert_store(ctx);
    if (!options->crl_file) {
        return HPS_OK;
    }
    X509_LOOKUP *lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
    if (!lookup || X509_load_crl_file(lookup, options->crl_file, X509_FILETYPE_PEM) < 1) {
        return file_error(err, names_in(options)->crl_file, options->crl_file);
    }
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return HPS_OK;
}

static hps_status set_ciphers(SSL_CTX *ctx, const struct hps_tls_options *options,
                              struct hps_error *err)
{
    if (options->ciphers && SSL_CTX_set_cipher_list(ctx, options->ciphers) != 1) {
        return file_error(err, names_in(options)->ciphers, options->ciphers);
    }
    /* OpenSSL accepts an empty list, which allows no suite */
    if (options->ciphersuites && (options->ciphersuites[0] == '\0' ||
                                  SSL_CTX_set_ciphersuites(ctx, options->ciphersuites) != 1)) {
        return file_error(err, names_in(options)->ciphersuites, options->ciphersuites);
    }
    return HPS_OK;
}

static hps_status ctx_new(const struct hps_tls_options *options, SSL_CTX **out_ctx,
                          struct hps_error *err)
{
    static const unsigned char session_id[] = "hpsd";
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(options->server ? TLS_server_method() : TLS_client_method());
    if (!ctx) {
        ERR_clear_error();
        return hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    }
    SSL_CTX_set_min_proto_version(ctx, options->tls13_only ? TLS1_3_VERSION : TLS1_2_VERSION);
    /* A write is retried with the same bytes, which may be at another address. */
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    /* Kernel TLS is used if the kernel, the cipher and OpenSSL support it. */
    SSL_CTX_set_options(ctx, SSL_OP_ENABLE_KTLS | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    if (options->server) {
        const unsigned char *ours = options->http1 ? alpn_http1 : alpn_h2;
        SSL_CTX_set_alpn_select_cb(ctx, select_alpn, (void *)(uintptr_t)ours); /* only read */
        SSL_CTX_set_session_id_context(ctx, session_id, sizeof(session_id) - 1);
    }
    hps_status status = HPS_OK;
    if (!options->server && !options->any_protocol &&
        SSL_CTX_set_alpn_protos(ctx, alpn_h2, sizeof(alpn_h2)) != 0) {
        status = hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    }
    status = status == HPS_OK ? load_own(ctx, options, err) : status;
    status = status == HPS_OK ? load_cas(ctx, options, err) : status;
    status = status == HPS_OK ? load_crl(ctx, options, err) : status;
    status = status == HPS_OK ? set_ciphers(ctx, options, err) : status;
    if (status != HPS_OK) {
        SSL_CTX_free(ctx);
        return status;
    }
    *out_ctx = ctx;
    return HPS_OK;
}

hps_status hps_tls_new(const struct hps_tls_options *options, struct hps_tls **out_tls,
                       struct hps_error *err)
{
    pthread_once(&signal_once, ignore_sigpipe);
    struct hps_tls *tls = hps_calloc(1, sizeof(*tls));
    if (!tls) {
        return hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    }
    atomic_init(&tls->refs, 1);
    hps_lock_init(&tls->lock, HPS_LOCK_TLS);
    tls->server = options->server;
    tls->any_protocol = options->any_protocol || options->http1;
    tls->server_name = options->server_name ? hps_strdup(options->server_name) : NULL;
    hps_status status = HPS_OK;
    if (options->server_name && !tls->server_name) {
        status = hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    } else {
        status = ctx_new(options, &tls->ctx, err);
    }
    if (status != HPS_OK) {
        hps_tls_unref(tls);
        return status;
    }
    *out_tls = tls;
    return HPS_OK;
}

struct hps_tls *hps_tls_ref(struct hps_tls *tls)
{
    unsigned refs = atomic_fetch_add_explicit(&tls->refs, 1, memory_order_relaxed);
    HPS_ASSERT(refs > 0);
    return tls;
}

void hps_tls_unref(struct hps_tls *tls)
{
    if (!tls || atomic_fetch_sub_explicit(&tls->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    SSL_CTX_free(tls->ctx);
    hps_free(tls->server_name);
    hps_lock_fini(&tls->lock);
    hps_free(tls);
}

void hps_tls_renew(struct hps_tls *tls, struct hps_tls *fresh)
{
    HPS_ASSERT(tls != fresh && atomic_load(&fresh->refs) == 1);
    HPS_ASSERT(tls->server == fresh->server);
    hps_lock_acquire(&tls->lock);
    SSL_CTX *old = tls->ctx;
    tls->ctx = fresh->ctx;
    hps_lock_release(&tls->lock);
    fresh->ctx = old; /* its sessions hold references */
    hps_tls_unref(fresh);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static bool expect_name(SSL *ssl, const char *name)
{
    unsigned char bytes[16];
    if (inet_pton(AF_INET, name, bytes) == 1 || inet_pton(AF_INET6, name, bytes) == 1) {
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    }
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

hps_status hps_tls_session_new(struct hps_tls *tls, int fd, const char *host,
                               struct hps_tls_session **out_session, struct hps_error *err)
{
    struct hps_tls_session *session = hps_calloc(1, sizeof(*session));
    if (!session) {
        return hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    }
    ERR_clear_error();
    hps_lock_acquire(&tls->lock);
    session->ssl = SSL_new(tls->ctx);
    hps_lock_release(&tls->lock);
    session->tls = hps_tls_ref(tls);
    const char *name = tls->server_name ? tls->server_name : host;
    bool ok = session->ssl && SSL_set_fd(session->ssl, fd) == 1;
    if (ok && tls->server) {
        SSL_set_accept_state(session->ssl);
    } else if (ok) {
        SSL_set_connect_state(session->ssl);
        ok = !name || expect_name(session->ssl, name);
    }
    if (!ok) {
        ERR_clear_error();
        hps_tls_session_free(session);
        return hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    }
    *out_session = session;
    return HPS_OK;
}

void hps_tls_session_free(struct hps_tls_session *session)
{
    if (!session) {
        return;
    }
    SSL_free(session->ssl);
    hps_tls_unref(session->tls);
    hps_free(session->names);
    hps_free(session);
}

/* ---- names of a certificate ------------------------------------------------------------------ */

static bool is_one_of(char c, const char *chars)
{
    return c != '\0' && strchr(chars, c) != NULL;
}

/* RFC 3986: a letter, then letters, digits, '+', '-' and '.', then ':'. No blanks or control
 * characters after it. */
static bool is_uri(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && (isalnum((unsigned char)text[n]) || is_one_of(text[n], "+-."))) {
        n++;
    }
    bool good = n > 0 && n < size && isalpha((unsigned char)text[0]) && text[n] == ':';
    for (size_t i = n; good && i < size; i++) {
        good = isgraph((unsigned char)text[i]);
    }
    return good;
}

static bool is_dns(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (!isalnum((unsigned char)text[i]) && !is_one_of(text[i], "-._*")) {
            return false;
        }
    }
    return size > 0;
}

/* Appends a name and its NUL. */
static hps_status add_name(struct hps_buf *names, const char *text, size_t size, bool lower)
{
    hps_status status = hps_buf_append(names, text, size);
    for (size_t i = names->size - size; status == HPS_OK && lower && i < names->size; i++) {
        names->data[i] = (uint8_t)tolower(names->data[i]);
    }
    return status == HPS_OK ? hps_buf_append(names, "", 1) : status;
}

/* Adds URIs and DNS names. *out_found: the certificate has one, valid or not. */
static hps_status add_sans(X509 *cert, struct hps_buf *names, bool *out_found)
{
    GENERAL_NAMES *sans = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    hps_status status = HPS_OK;
    unsigned n = 0;
    *out_found = false;
    for (int i = 0; i < sk_GENERAL_NAME_num(sans) && status == HPS_OK; i++) {
        int type = 0;
        const ASN1_STRING *value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(sans, i), &type);
        if (type != GEN_DNS && type != GEN_URI) {
            continue;
        }
        const char *text = (const char *)ASN1_STRING_get0_data(value);
        size_t size = (size_t)ASN1_STRING_length(value);
        bool good = type == GEN_DNS ? is_dns(text, size) : is_uri(text, size);
        *out_found = true;
        if (good && size < NAME_BYTES_MAX && n++ < NAMES_MAX) {
            status = add_name(names, text, size, type == GEN_DNS);
        }
    }
    GENERAL_NAMES_free(sans);
    return status;
}

static hps_status add_subject(X509 *cert, struct hps_buf *names)
{
    BIO *bio = BIO_new(BIO_s_mem());
    char *text = NULL;
    hps_status status = HPS_NO_MEMORY;
    if (bio && X509_NAME_print_ex(bio, X509_get_subject_name(cert), 0, XN_FLAG_RFC2253) >= 0) {
        long size = BIO_get_mem_data(bio, &text);
        /* RFC 2253 escapes unprintable characters; a truncated name could equal another */
        bool good = size > 0 && size < NAME_BYTES_MAX && !memchr(text, 0, (size_t)size);
        status = good ? add_name(names, text, (size_t)size, false) : HPS_OK;
    }
    BIO_free(bio);
    return status;
}

/* owner: *out_names is the caller's, hps_free; NO_MEMORY */
static hps_status names_of(X509 *cert, char **out_names)
{
    struct hps_buf names;
    bool found = false;
    hps_buf_init(&names, (size_t)NAMES_MAX * NAME_BYTES_MAX + 1);
    hps_status status = add_sans(cert, &names, &found);
    if (status == HPS_OK && !found) {
        status = add_subject(cert, &names);
    }
    status = status == HPS_OK ? hps_buf_append(&names, "", 1) : status;
    if (status == HPS_OK) {
        *out_names = hps_alloc(names.size);
        status = *out_names ? HPS_OK : HPS_NO_MEMORY;
    }
    if (status == HPS_OK) {
        memcpy(*out_names, names.data, names.size);
    }
    hps_buf_fini(&names);
    return status;
}

const char *hps_tls_session_name(const struct hps_tls_session *session, unsigned i)
{
    const char *name = session->names;
    while (name && name[0] != '\0' && i > 0) {
        name += strlen(name) + 1;
        i--;
    }
    return name && name[0] != '\0' ? name : NULL;
}

/* Checks with the files of `ctx`, not with the handshake's files. */
static hps_status recheck_cert(struct hps_tls_session *session, SSL_CTX *ctx, X509 *cert,
                               struct hps_error *err)
{
    X509_STORE_CTX *check = X509_STORE_CTX_new();
    hps_status status = HPS_OK;
    bool ready =
        check &&
        X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(ctx), cert,
                            SSL_get_peer_cert_chain(session->ssl)) == 1 &&
        X509_STORE_CTX_set_default(check, session->tls->server ? "ssl_client" : "ssl_server") == 1;
    if (!ready) {
        status = hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    } else if (X509_verify_cert(check) != 1) {
        status = hps_error_set(err, HPS_UNAUTHENTICATED, "TLS: certificate of the peer: %s",
                               X509_verify_cert_error_string(X509_STORE_CTX_get_error(check)));
    }
    X509_STORE_CTX_free(check);
    return status;
}

hps_status hps_tls_session_recheck(struct hps_tls_session *session, struct hps_error *err)
{
    X509 *cert = SSL_get0_peer_certificate(session->ssl);
    hps_lock_acquire(&session->tls->lock);
    SSL_CTX *ctx = session->tls->ctx;
    SSL_CTX_up_ref(ctx);
    hps_lock_release(&session->tls->lock);
    int mode = SSL_CTX_get_verify_mode(ctx);
    hps_status status = HPS_OK;
    if (ctx == SSL_get_SSL_CTX(session->ssl) || mode == SSL_VERIFY_NONE) {
        status = HPS_OK; /* these files were used in the handshake, or no certificate is required */
    } else if (cert) {
        status = recheck_cert(session, ctx, cert, err);
    } else if ((mode & SSL_VERIFY_FAIL_IF_NO_PEER_CERT) != 0) {
        status = hps_error_set(err, HPS_UNAUTHENTICATED,
                               "TLS: the peer sent no certificate, and one is required now");
    }
    SSL_CTX_free(ctx);
    ERR_clear_error();
    return status;
}

static hps_status established(struct hps_tls_session *session, struct hps_error *err)
{
    const unsigned char *alpn = NULL;
    unsigned alpn_size = 0;
    SSL_get0_alpn_selected(session->ssl, &alpn, &alpn_size);
    if (!session->tls->any_protocol && (alpn_size != 2 || memcmp(alpn, "h2", 2) != 0)) {
        phase_set(session, TLS_BROKEN);
        return hps_error_set(err, HPS_UNAVAILABLE, "TLS: the peer does not speak HTTP/2 (ALPN h2)");
    }
    X509 *cert = SSL_get0_peer_certificate(session->ssl);
    if (cert && names_of(cert, &session->names) != HPS_OK) {
        phase_set(session, TLS_BROKEN);
        return hps_error_set(err, HPS_NO_MEMORY, "TLS: out of memory");
    }
    phase_set(session, TLS_ESTABLISHED);
    ERR_clear_error();
    return HPS_OK;
}

/* The status for a result other than success. May change `out_wait` with any status. */
static hps_status session_status(struct hps_tls_session *session, int rc,
                                 enum hps_tls_wait *out_wait)
{
    int error = errno;
    switch (SSL_get_error(session->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
        *out_wait = HPS_TLS_WAIT_READ;
        return HPS_AGAIN;
    case SSL_ERROR_WANT_WRITE:
        *out_wait = HPS_TLS_WAIT_WRITE;
        return HPS_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return HPS_CLOSED;
    case SSL_ERROR_SYSCALL:
        phase_set(session, TLS_BROKEN);
        return error == EPIPE ? HPS_CLOSED : HPS_IO;
    default:
        phase_set(session, TLS_BROKEN);
        return HPS_IO;
    }
}

hps_status hps_tls_session_handshake(struct hps_tls_session *session, enum hps_tls_wait *out_wait,
                                     struct hps_error *err)
{
    HPS_ASSERT(session->phase != TLS_BROKEN);
    if (session->phase == TLS_ESTABLISHED) {
        return HPS_OK;
    }
    ERR_clear_error();
    errno = 0;
    int rc = SSL_do_handshake(session->ssl);
    if (rc == 1) {
        return established(session, err);
    }
    hps_status status = session_status(session, rc, out_wait);
    if (status == HPS_AGAIN) {
        return status;
    }
    int error = errno;
    long verified = SSL_get_verify_result(session->ssl);
    if (verified != X509_V_OK) {
        ERR_clear_error();
        return hps_error_set(err, HPS_UNAUTHENTICATED, "TLS: certificate of the peer: %s",
                             X509_verify_cert_error_string(verified));
    }
    unsigned long code = ERR_peek_error();
    if (code == 0 || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        ERR_clear_error();
        return hps_error_set(err, HPS_CLOSED, "TLS: %s",
                             error ? strerror(error)
                                   : "the peer closed the connection during the handshake");
    }
    if (!SSL_is_server(session->ssl) && ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER) {
        ERR_clear_error();
        return hps_error_set(err, HPS_UNAVAILABLE, "the peer does not speak TLS");
    }
    bool no_cert = ERR_GET_REASON(code) == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE;
    char reason[200];
    return hps_error_set(err, no_cert ? HPS_UNAUTHENTICATED : HPS_UNAVAILABLE, "TLS: %s",
                         openssl_reason(reason, sizeof(reason)));
}

/* Before each call of OpenSSL: clears the errors of earlier calls. */
static void begin_io(const struct hps_tls_session *session, size_t size)
{
    HPS_ASSERT(session->phase != TLS_HANDSHAKE && size > 0);
    ERR_clear_error();
    errno = 0;
}

/* The status of a read or write of `size` bytes for which OpenSSL returned `rc`. */
static hps_status end_io(struct hps_tls_session *session, int rc, size_t size, size_t *out_size,
                         enum hps_tls_wait *out_wait)
{
    if (rc == 1) {
        HPS_ASSERT(size > 0);
        *out_size = size;
        return HPS_OK;
    }
    hps_status status = session_status(session, rc, out_wait);
    ERR_clear_error();
    return status;
}

hps_status hps_tls_session_read(struct hps_tls_session *session, void *data, size_t capacity,
                                size_t *out_size, enum hps_tls_wait *out_wait)
{
    size_t size = 0;
    begin_io(session, capacity);
    int rc = SSL_read_ex(session->ssl, data, capacity, &size);
    return end_io(session, rc, size, out_size, out_wait);
}

hps_status hps_tls_session_write(struct hps_tls_session *session, const void *data, size_t size,
                                 size_t *out_size, enum hps_tls_wait *out_wait)
{
    size_t written = 0;
    begin_io(session, size);
    int rc = SSL_write_ex(session->ssl, data, size, &written);
    return end_io(session, rc, written, out_size, out_wait);
}

void hps_tls_session_shutdown(struct hps_tls_session *session)
{
    if (session->phase == TLS_ESTABLISHED) {
        ERR_clear_error();
        (void)SSL_shutdown(session->ssl); /* sends close_notify; does not wait for the peer's */
        ERR_clear_error();
    }
}

bool hps_tls_session_pending(const struct hps_tls_session *session)
{
    return SSL_pending(session->ssl) > 0;
}

bool hps_tls_session_received(const struct hps_tls_session *session)
{
    return BIO_number_read(SSL_get_rbio(session->ssl)) > 0;
}

hps_status hps_tls_sha256(const void *data, size_t size, unsigned char out_digest[32])
{
    return EVP_Digest(data, size, out_digest, NULL, EVP_sha256(), NULL) == 1 ? HPS_OK
                                                                             : HPS_NO_MEMORY;
}
