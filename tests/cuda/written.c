/* What is known of the bytes that the last launch writes. */
#include "support.h"
#include "test.h"

/* Which bytes the last launch leaves as they are is known only where it was said what it writes. */
TEST(cuda_fake_launch_writes)
{
    fake_begin();
    cup__error error = {0};
    cup__cuda *gpu = fake_open(&error);
    cup__device *d = &gpu->device;
    uint32_t numbers[8] = {0};
    void *memory;
    EXPECT_OK(&error, d->calls->allocate(d, sizeof numbers, "numbers", &memory));
    EXPECT_OK(&error, d->calls->write(d, memory, numbers, sizeof numbers));
    char *at = memory;
    EXPECT(!cup__launched_spares(gpu, at, 4));
    EXPECT_OK(&error, fake_add(gpu, memory, 2, 10));
    EXPECT(!cup__launched_spares(gpu, at + 8, 8));
    cup__launch_writes(gpu, at, 8);
    EXPECT(!cup__launched_spares(gpu, at + 8, 8));
    cup__launch_known(gpu);
    cup__launch_writes(gpu, at, 8);
    cup__launch_writes(gpu, at + 16, 8);
    cup__launch_writes(gpu, NULL, 8);
    EXPECT(cup__launched_spares(gpu, at + 8, 8));
    EXPECT(cup__launched_spares(gpu, at + 24, 8));
    EXPECT(!cup__launched_spares(gpu, at + 4, 8));
    EXPECT(!cup__launched_spares(gpu, at + 12, 8));
    EXPECT(!cup__launched_spares(gpu, at, 32));
    EXPECT_OK(&error, fake_add(gpu, memory, 1, 10));
    EXPECT(!cup__launched_spares(gpu, at + 8, 8));
    cup__launch_known(gpu);
    for (int i = 0; i < 6; i++) {
        cup__launch_writes(gpu, at, 4);
        EXPECT_INT(cup__launched_spares(gpu, at + 28, 4), i < 4);
    }
    EXPECT_OK(&error, fake_add(gpu, memory, 1, 10));
    cup__launch_known(gpu);
    cup__launch_writes(gpu, at, 4);
    EXPECT(cup__launched_spares(gpu, at + 28, 4));
    cup__cuda_stream_shown(gpu);
    EXPECT(!cup__launched_spares(gpu, at + 28, 4));
    d->calls->release(d, memory);
    d->calls->close(d);
    fake_expect_nothing_left();
}
