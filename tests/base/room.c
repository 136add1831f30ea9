/* How much memory there is, by files such as the system's. */
#include "base/room.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/file.h"
#include "test.h"

#define MIB ((int64_t)1 << 20)

static char root[4300];

static void put(const char *path, const char *format, long long number)
{
    char whole[4500], text[300], folder[4500];
    snprintf(whole, sizeof whole, "%s%s", root, path);
    snprintf(folder, sizeof folder, "%s", whole);
    *strrchr(folder, '/') = 0;
    EXPECT_INT(cup__folder_make(NULL, folder), CUP_OK);
    snprintf(text, sizeof text, format, number);
    EXPECT_INT(cup__file_write(NULL, whole, text, strlen(text)), CUP_OK);
}

static void begin(void)
{
    snprintf(root, sizeof root, "%s", test_folder());
    cup__room_root(root);
}

static void expect_room(int64_t free, int64_t most, const char *what)
{
    cup__room room;
    cup__room_find(&room);
    EXPECT_INT(room.free, free);
    EXPECT_INT(room.most, most);
    EXPECT_CONTAINS(room.what, what);
}

TEST(room_of_a_machine)
{
    begin();
    expect_room(INT64_MAX, INT64_MAX, "nothing");
    put("/proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: %lld kB\nSwapFree: 24 kB\n", 1000);
    expect_room(1024 * 1024, 4096 * 1024, "the machine");
}

TEST(room_of_control_groups_v2)
{
    begin();
    put("/proc/meminfo", "MemTotal: %lld kB\nMemAvailable: 8388608 kB\nSwapFree: 0 kB\n", 8388608);
    put("/proc/self/cgroup", "0::/a/b\n%.0lld", 0);
    put("/sys/fs/cgroup/a/b/memory.max", "max\n%.0lld", 0);
    put("/sys/fs/cgroup/a/b/memory.current", "%lld\n", 1);
    expect_room(8192 * MIB, 8192 * MIB, "the machine");
    put("/sys/fs/cgroup/a/memory.max", "%lld\n", 1024 * MIB);
    put("/sys/fs/cgroup/a/memory.current", "%lld\n", 900 * MIB);
    expect_room(124 * MIB, 1024 * MIB, "the control group");
    put("/sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file %lld\nactive_file 0\n", 100 * MIB);
    expect_room(224 * MIB, 1024 * MIB, "the control group");
    put("/sys/fs/cgroup/a/b/memory.max", "%lld\n", 10 * MIB);
    put("/sys/fs/cgroup/a/b/memory.current", "%lld\n", 11 * MIB);
    expect_room(0, 10 * MIB, "the control group");
}

/* Inside a container the path of the host is not there, and the mount's root is the group. */
TEST(room_of_control_groups_v1)
{
    begin();
    put("/proc/meminfo", "MemTotal: %lld kB\nMemAvailable: 8388608 kB\nSwapFree: 1048576 kB\n",
        8388608);
    put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n%.0lld", 0);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "%lld\n", 1024 * MIB);
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "%lld\n", 24 * MIB);
    put("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "%lld\n", 1024 * MIB);
    put("/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes", "%lld\n", 24 * MIB);
    expect_room(1000 * MIB, 1024 * MIB, "the control group");
    put("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "%lld\n", 1224 * MIB);
    expect_room(1200 * MIB, 1024 * MIB, "the control group");
    put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "%lld\n", 64 * MIB);
    put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "%lld\n", 24 * MIB);
    put("/sys/fs/cgroup/memory/docker/abc/memory.memsw.limit_in_bytes", "%lld\n", 64 * MIB);
    put("/sys/fs/cgroup/memory/docker/abc/memory.memsw.usage_in_bytes", "%lld\n", 24 * MIB);
    expect_room(40 * MIB, 64 * MIB, "the control group");
}

TEST(room_of_limits)
{
    begin();
    put("/proc/self/status", "Name: x\nVmSize: 4096 kB\nVmData: %lld kB\n", 2048);
    struct rlimit old, limit = {3000 * MIB, RLIM_INFINITY};
    EXPECT_INT(getrlimit(RLIMIT_DATA, &old), 0);
    limit.rlim_max = old.rlim_max;
    EXPECT_INT(setrlimit(RLIMIT_DATA, &limit), 0);
    expect_room(2998 * MIB, 3000 * MIB, "ulimit -d");
    EXPECT_INT(setrlimit(RLIMIT_DATA, &old), 0);
}
