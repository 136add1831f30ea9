/* What it takes to bring tensors from GPU to GPU. */
#include <math.h>
#include <strings.h>

#include "cli/plan_split.h"

/* Sums over two H200 by NCCL took 12.7 us up to 256 KiB and 14.7, 33.0, 74.6, 247.8, 896.7 and
 * 3246.8 us from 1 MiB to 1 GiB, in steps of four (of 64 MiB to 1 GiB in the last three): the curve
 * is within 9 % of all of them. Among four the bus reaches 354 GB/s at 1 GiB, which it does with
 * LINK in the place of LINK_OF_TWO. */
#define LEAST_SECONDS 12.7e-6
#define BEGIN_SECONDS 5e-6
#define ROOT_SECONDS 6.53e-9 /* of the root of the bytes */
#define LINK_OF_TWO 354.6e9
#define LINK 372e9

/* Not measured: what a message between nodes takes, on each step of a tree. */
#define HOP_SECONDS 10e-6

/* Blocks of 2048 on two H200: each sum of 16.8 MB in a block held the step up by 45 us more than
 * the sum itself takes. Two kernels' beginnings are of any size, the rest goes with the bytes. */
#define AROUND_SECONDS 12e-6
#define AROUND_BYTES 2e-12

/* GPT-2 124M on two H200, texts of 8,192 tokens: each time that keys, values or their gradients
 * went on to the other card took so much longer than they take themselves, of which nothing was
 * hidden. With it texts of 32,768 are as the model has them, see docs/SCALE.md. */
#define ROUND_SECONDS 150e-6

bool plan_link_of(const char *card, double *bytes_per_second)
{
    static const struct {
        const char *card;
        double link;
    } known[] = {{"h200", LINK},
                 {"h100", LINK},
                 {"a100", LINK * 2 / 3},
                 {"a100-80gb", LINK * 2 / 3},
                 {"b200", LINK * 2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcasecmp(card, known[i].card)) {
            *bytes_per_second = known[i].link;
            return true;
        }
    *bytes_per_second = 25e9;
    return false;
}

/* Of a group's processes, those on one node. */
static int64_t together(const plan_cluster *k, plan_group group)
{
    int64_t most = k->each / group.stride;
    most = most < 1 ? 1 : most;
    return most < group.count ? most : group.count;
}

/* Bytes that each sends, as the curve has them: processes of a node use all their adapters. */
static double curve(const plan_cluster *k, plan_group group, double bytes)
{
    int64_t here = together(k, group), nodes = (group.count + here - 1) / here;
    double link = group.count == 2 ? k->link * LINK_OF_TWO / LINK : k->link;
    double out = (double)here * k->network;
    double rate = nodes > 1 && (here == 1 || out < link) ? out : link;
    double moved = (ROOT_SECONDS * sqrt(bytes) + bytes / LINK_OF_TWO) * LINK_OF_TWO / rate;
    return fmax(LEAST_SECONDS, BEGIN_SECONDS + moved) +
           (nodes > 1 ? 2 * HOP_SECONDS * ceil(log2((double)nodes)) : 0);
}

double plan_all_reduce(const plan_cluster *k, plan_group group, double bytes)
{
    double count = (double)group.count;
    return group.count > 1 ? curve(k, group, 2 * (count - 1) / count * bytes) : 0;
}

double plan_spread(const plan_cluster *k, plan_group group, double bytes)
{
    return group.count > 1 ? curve(k, group, bytes) : 0;
}

double plan_send(const plan_cluster *k, plan_group group, double bytes)
{
    return curve(k, (plan_group){2, group.stride}, bytes);
}

double plan_block_sum(const plan_cluster *k, plan_group group, double bytes)
{
    if (group.count < 2)
        return 0;
    return plan_all_reduce(k, group, bytes) + AROUND_SECONDS + AROUND_BYTES * bytes;
}

double plan_exchange(const plan_cluster *k, plan_group group, double bytes)
{
    return group.count > 1 ? curve(k, group, bytes) : 0;
}

double plan_round(const plan_cluster *k, plan_group group, double bytes)
{
    return plan_send(k, group, bytes) + ROUND_SECONDS;
}
