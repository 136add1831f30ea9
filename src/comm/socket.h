/* TCP sockets that never wait longer than they were told. Times are of cup__clock. */
#ifndef CUP_COMM_SOCKET_H
#define CUP_COMM_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"
#include "base/error.h"

#define CUP__HOST_TEXT 256

/* A place on the network. */
typedef struct cup__endpoint {
    char host[CUP__HOST_TEXT];
    int port;
} cup__endpoint;

/* Sleeps up to so many seconds. */
void cup__pause(double seconds);

/* Reads "HOST:PORT", also with an address of IPv6 in brackets. */
cup_status cup__endpoint_read(cup__error *error, const char *text, cup__endpoint *out);

/* Listens at a place, where the host is this one's, or else at all its addresses; where the port is
 * taken, at one of the `more` behind it. Port 0 takes any. -1: not possible, with errno set. */
int cup__listen(cup__endpoint *place, int more);

/* Sockets that do not block, or -1. */
int cup__accept(int listener);
int cup__connect(const cup__endpoint *place, double deadline);

/* The host at the other end, in digits. */
bool cup__host_of(int handle, char host[CUP__HOST_TEXT]);
bool cup__host_is_loopback(const char *host);

/* Waits until the handle can be read from, or written to; false: the time is over. */
bool cup__wait(int handle, bool write, double deadline);

/* All of it within the time, or false. */
bool cup__send_all(int handle, const void *bytes, size_t count, double deadline);
bool cup__receive_all(int handle, void *bytes, size_t count, double deadline);

#endif
