#include "comm/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void cup__pause(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

cup_status cup__endpoint_read(cup__error *error, const char *text, cup__endpoint *out)
{
    const char *colon = strrchr(text, ':'), *from = text;
    size_t length = colon ? (size_t)(colon - text) : 0;
    char *end = NULL;
    long port = colon && colon[1] ? strtol(colon + 1, &end, 10) : -1;
    if (length > 2 && text[0] == '[' && text[length - 1] == ']') {
        from++;
        length -= 2;
    }
    if (length < 1 || length >= CUP__HOST_TEXT || !end || *end || port < 1 || port > 65535)
        return cup__fail(error, CUP_ARGUMENT,
                         "communicator: the address \"%.300s\" is not HOST:PORT with a port from 1 "
                         "to 65535, as 127.0.0.1:29500",
                         text);
    memcpy(out->host, from, length);
    out->host[length] = 0;
    out->port = (int)port;
    return CUP_OK;
}

static void prepare(int handle)
{
    int on = 1;
    fcntl(handle, F_SETFL, fcntl(handle, F_GETFL) | O_NONBLOCK);
    fcntl(handle, F_SETFD, FD_CLOEXEC);
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static struct addrinfo *find(const char *host, int port, bool listens)
{
    const struct addrinfo wish = {.ai_family = AF_UNSPEC,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    struct addrinfo *found = NULL;
    char digits[16];
    snprintf(digits, sizeof digits, "%d", port);
    return getaddrinfo(host, digits, &wish, &found) ? NULL : found;
}

static int listen_at(const struct addrinfo *at)
{
    int on = 1, handle = socket(at->ai_family, at->ai_socktype, 0);
    if (handle < 0)
        return -1;
    setsockopt(handle, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(handle, at->ai_addr, at->ai_addrlen) || listen(handle, 1024)) {
        int number = errno;
        close(handle);
        errno = number;
        return -1;
    }
    prepare(handle);
    return handle;
}

static int listen_once(const char *host, int port)
{
    struct addrinfo *list = find(host, port, true);
    int handle = -1;
    errno = EADDRNOTAVAIL;
    for (const struct addrinfo *at = list; at && handle < 0; at = at->ai_next)
        handle = listen_at(at);
    int number = errno;
    if (list)
        freeaddrinfo(list);
    errno = number;
    return handle;
}

static int port_of(int handle)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    if (getsockname(handle, (struct sockaddr *)&at, &size))
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

int cup__listen(cup__endpoint *place, int more)
{
    int handle = -1;
    for (int i = 0; i <= more && handle < 0; i++) {
        handle = listen_once(*place->host ? place->host : NULL, place->port + i);
        /* The name may be that of a gateway, which is no address of this host. */
        if (handle < 0 && errno == EADDRNOTAVAIL && *place->host)
            handle = listen_once(NULL, place->port + i);
        if (handle < 0 && errno != EADDRINUSE)
            break;
    }
    if (handle >= 0)
        place->port = port_of(handle);
    return handle;
}

int cup__accept(int listener)
{
    int handle = accept(listener, NULL, NULL);
    if (handle >= 0)
        prepare(handle);
    return handle;
}

bool cup__wait(int handle, bool write, double deadline)
{
    struct pollfd one = {.fd = handle, .events = write ? POLLOUT : POLLIN};
    for (;;) {
        double left = deadline - cup__clock();
        int found = poll(&one, 1, left <= 0 ? 0 : left > 1e5 ? 100000000 : (int)(left * 1e3) + 1);
        if (found > 0)
            return true;
        if (found == 0 && left <= 0)
            return false;
        if (found < 0 && errno != EINTR && errno != EAGAIN)
            return false;
    }
}

static int connect_at(const struct addrinfo *at, double deadline)
{
    int handle = socket(at->ai_family, at->ai_socktype, 0), failed = 0;
    socklen_t size = sizeof failed;
    if (handle < 0)
        return -1;
    prepare(handle);
    if (!connect(handle, at->ai_addr, at->ai_addrlen))
        return handle;
    if (errno == EINPROGRESS && cup__wait(handle, true, deadline) &&
        !getsockopt(handle, SOL_SOCKET, SO_ERROR, &failed, &size) && !failed)
        return handle;
    close(handle);
    return -1;
}

int cup__connect(const cup__endpoint *place, double deadline)
{
    struct addrinfo *list = find(place->host, place->port, false);
    int handle = -1;
    for (const struct addrinfo *at = list; at && handle < 0; at = at->ai_next)
        handle = connect_at(at, deadline);
    if (list)
        freeaddrinfo(list);
    return handle;
}

bool cup__host_of(int handle, char host[CUP__HOST_TEXT])
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    return !getpeername(handle, (struct sockaddr *)&at, &size) &&
           !getnameinfo((struct sockaddr *)&at, size, host, CUP__HOST_TEXT, NULL, 0,
                        NI_NUMERICHOST);
}

bool cup__host_is_loopback(const char *host)
{
    return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strncmp(host, "::ffff:127.", 11);
}

bool cup__send_all(int handle, const void *bytes, size_t count, double deadline)
{
    const char *at = bytes;
    while (count) {
        ssize_t sent = send(handle, at, count, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            count -= (size_t)sent;
        } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            return false;
        } else if (!cup__wait(handle, true, deadline)) {
            return false;
        }
    }
    return true;
}

bool cup__receive_all(int handle, void *bytes, size_t count, double deadline)
{
    char *at = bytes;
    while (count) {
        ssize_t got = recv(handle, at, count, 0);
        if (got > 0) {
            at += got;
            count -= (size_t)got;
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            return false;
        } else if (!cup__wait(handle, false, deadline)) {
            return false;
        }
    }
    return true;
}
