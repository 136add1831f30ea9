/* What kinds of GPUs can do, from NVIDIA's data sheets: those of H200, H100, A100, A30, A40, A10,
 * L40S, L40, L4, T4 and HGX B200, and for GeForce the white papers of Ada and Ampere. Where a sheet
 * gives the number with sparsity, it is half of that. */
#include <string.h>
#include <strings.h>

#include "cupola/facts.h"

#define GB 1e9
#define T 1e12

static const cup_card cards[] = {
    {"h200", "NVIDIA H200", "sm_90a", 132, 141 * GB, 4800 * GB, 66.9 * T, 494.7 * T, 989.4 * T,
     1978.9 * T},
    {"h200-nvl", "NVIDIA H200 NVL", "sm_90a", 132, 141 * GB, 4800 * GB, 60 * T, 417.5 * T,
     835.5 * T, 1670.5 * T},
    {"h100", "NVIDIA H100 80GB HBM3", "sm_90a", 132, 80 * GB, 3350 * GB, 66.9 * T, 494.7 * T,
     989.4 * T, 1978.9 * T},
    {"h100-nvl", "NVIDIA H100 NVL", "sm_90a", 132, 94 * GB, 3900 * GB, 60 * T, 417.5 * T,
     835.5 * T, 1670.5 * T},
    {"h100-pcie", "NVIDIA H100 PCIe", "sm_90a", 114, 80 * GB, 2000 * GB, 51.2 * T, 378 * T, 756 * T,
     1513 * T},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB", "sm_80", 108, 80 * GB, 2039 * GB, 19.5 * T, 156 * T,
     312 * T, 0},
    {"a100", "NVIDIA A100-SXM4-40GB", "sm_80", 108, 40 * GB, 1555 * GB, 19.5 * T, 156 * T, 312 * T,
     0},
    {"a100-pcie-80gb", "NVIDIA A100 80GB PCIe", "sm_80", 108, 80 * GB, 1935 * GB, 19.5 * T, 156 * T,
     312 * T, 0},
    {"a100-pcie", "NVIDIA A100-PCIE-40GB", "sm_80", 108, 40 * GB, 1555 * GB, 19.5 * T, 156 * T,
     312 * T, 0},
    {"a30", "NVIDIA A30", "sm_80", 56, 24 * GB, 933 * GB, 10.3 * T, 82 * T, 165 * T, 0},
    {"a40", "NVIDIA A40", "sm_86", 84, 48 * GB, 696 * GB, 37.4 * T, 74.8 * T, 149.7 * T, 0},
    {"a10", "NVIDIA A10", "sm_86", 72, 24 * GB, 600 * GB, 31.2 * T, 62.5 * T, 125 * T, 0},
    {"l40s", "NVIDIA L40S", "sm_89", 142, 48 * GB, 864 * GB, 91.6 * T, 183 * T, 362 * T, 733 * T},
    {"l40", "NVIDIA L40", "sm_89", 142, 48 * GB, 864 * GB, 90.5 * T, 90.5 * T, 181 * T, 362 * T},
    {"l4", "NVIDIA L4", "sm_89", 58, 24 * GB, 300 * GB, 30.3 * T, 60 * T, 121 * T, 242 * T},
    {"t4", "Tesla T4", "sm_75", 40, 16 * GB, 300 * GB, 8.1 * T, 0, 65 * T, 0},
    {"rtx-4090", "NVIDIA GeForce RTX 4090", "sm_89", 128, 24 * GB, 1008 * GB, 82.6 * T, 82.6 * T,
     165.2 * T, 330.3 * T},
    {"rtx-3090", "NVIDIA GeForce RTX 3090", "sm_86", 82, 24 * GB, 936 * GB, 35.6 * T, 35.6 * T,
     71 * T, 0},
    {"b200", "NVIDIA B200", "sm_100a", 148, 180 * GB, 7700 * GB, 75 * T, 1125 * T, 2250 * T,
     4500 * T},
};

#define COUNT ((int)(sizeof cards / sizeof *cards))

bool cup_card_at(int index, cup_card *out)
{
    bool found = index >= 0 && index < COUNT && out;
    if (found)
        *out = cards[index];
    return found;
}

bool cup_card_find(const char *name, cup_card *out)
{
    for (int i = 0; name && i < COUNT; i++)
        if (!strcasecmp(cards[i].name, name) || !strcasecmp(cards[i].driver, name))
            return cup_card_at(i, out);
    return false;
}
