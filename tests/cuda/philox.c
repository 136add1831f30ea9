/* Random numbers: the published known answers, and the device's text against the host's. */
#include "base/philox.h"
#include "test.h"

/* The device brick is plain enough to be compiled here. */
#define CUP_DTYPE_CUH
#define DEVICE static inline
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "kernels/philox.cuh"

static const struct {
    uint32_t key[2], counter[4], words[4];
} answers[] = {
    {{0, 0}, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0xa4093822, 0x299f31d0},
     {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(philox_known_answers)
{
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        uint64_t key = answers[i].key[0] | (uint64_t)answers[i].key[1] << 32;
        const uint32_t *c = answers[i].counter;
        cup__philox_words words = cup__philox(key, c[0], c[1], c[2], c[3]);
        for (int j = 0; j < 4; j++)
            EXPECT_INT(words.at[j], answers[i].words[j]);
    }
}

TEST(philox_device_twin)
{
    for (int i = 0; i < 1000; i++) {
        uint64_t state[2] = {test_random(), test_random()}, block = test_random();
        uint32_t sequence = (uint32_t)test_random();
        cup__philox_words host = cup__philox_block(state, sequence, block);
        struct philox_words device = philox_block(state, sequence, block);
        for (int j = 0; j < 4; j++) {
            EXPECT_INT(device.at[j], host.at[j]);
            EXPECT(philox_uniform(device.at[j]) == cup__philox_uniform(host.at[j]));
            EXPECT(cup__philox_uniform(host.at[j]) >= 0 && cup__philox_uniform(host.at[j]) < 1);
        }
    }
}
