#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"
#include "base/text.h"

static const char *const names[] = {"", "info", "dispatch", "launch", "time", "source", "sass"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cup_log_hook hook;
static void *hook_user;
_Atomic int cup__log_level = -1;

static void say(const char *line)
{
    pthread_mutex_lock(&lock);
    if (hook)
        hook(hook_user, line);
    else
        fprintf(stderr, "cupola: %s\n", line);
    pthread_mutex_unlock(&lock);
}

static int level_from_environment(void)
{
    const char *wanted = cup__env_get(CUP__ENV_LOG);
    for (int level = 0; level <= CUP__SASS; level++)
        if (!strcmp(wanted, names[level]))
            return level;
    char line[256];
    snprintf(line, sizeof line,
             "CUP_LOG=%.100s is unknown; use info, dispatch, launch, time, source or sass", wanted);
    say(line);
    return CUP__INFO;
}

bool cup__log_first(cup__level level)
{
    int now = level_from_environment();
    atomic_store_explicit(&cup__log_level, now, memory_order_relaxed);
    return (int)level <= now;
}

void cup__log(cup__level level, const char *format, ...)
{
    if (!cup__log_wants(level))
        return;
    char line[4096], visible[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    say(cup_text_visible(line, "\n\t", visible, sizeof visible));
}

void cup_log_to(cup_log_hook new_hook, void *user)
{
    pthread_mutex_lock(&lock);
    hook = new_hook;
    hook_user = user;
    pthread_mutex_unlock(&lock);
}
