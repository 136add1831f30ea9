/* What it takes to bring tensors from GPU to GPU, gradients and weights of copies among them. */
#include <math.h>
#include <strings.h>

#include "cli/plan_piece.h"

/* Sums over two H200 by NCCL took 12.7 us up to 256 KiB and 14.7, 33.0, 74.6, 247.8, 896.7 and
 * 3246.8 us from 1 MiB to 1 GiB, in steps of four (of 64 MiB to 1 GiB in the last three): the curve
 * is within 9 % of all of them. Among four the bus reaches 354 GB/s at 1 GiB, which it does with
 * LINK in the place of LINK_OF_TWO. */
#define LEAST_SECONDS 12.7e-6
#define BEGIN_SECONDS 5e-6
#define ROOT_SECONDS 6.53e-9 /* of the root of the bytes */
#define LINK_OF_TWO 354.6e9
#define LINK 372e9
#define ASSUMED_LINK 25e9 /* of cards that are not known */

/* Not measured: what a message between nodes takes, on each step of a tree. */
#define HOP_SECONDS 10e-6

/* Blocks of 2048 on two H200: each sum of 16.8 MB in a block held the step up by 45 us more than
 * the sum itself takes. Two kernels' beginnings are of any size, the rest goes with the bytes. */
#define AROUND_SECONDS 12e-6
#define AROUND_BYTES 2e-12

/* Two of a node send by copy engines: 16.8 MB take 43 us on the links, 13 to be added and 9 for
 * flags and launches. */
#define COPY_SECONDS 9e-6
#define COPY_LINK 390e9 /* of what sums of more reach on LINK */
#define ADD_BYTES 0.77e-12

/* GPT-2 124M on two H200, texts of 8,192 tokens: each time that keys, values or their gradients
 * went on to the other card took so much longer than they take themselves, of which nothing was
 * hidden. With it texts of 32,768 are as the model has them, see docs/SCALE.md. */
#define ROUND_SECONDS 150e-6

#define BUCKET 32e6 /* bytes of gradients that go at a time, see CUP_COMM_BUCKET */
/* ZeRO brings whole parameters, of which blocks have about so many that are large. */
#define LARGE_OF_BLOCK 4

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
    *bytes_per_second = ASSUMED_LINK;
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
    if (group.count == 2 && together(k, group) == 2 && k->link > ASSUMED_LINK) {
        double link = COPY_LINK * k->link / LINK;
        return COPY_SECONDS + bytes / link + ADD_BYTES * bytes;
    }
    return plan_all_reduce(k, group, bytes) + AROUND_SECONDS + AROUND_BYTES * bytes;
}

double plan_block_half(const plan_cluster *k, plan_group group, double bytes)
{
    double count = (double)group.count;
    if (group.count < 2)
        return 0;
    double around = AROUND_SECONDS + AROUND_BYTES / 2 * bytes;
    return curve(k, group, (count - 1) / count * bytes) + around;
}

double plan_exchange(const plan_cluster *k, plan_group group, double bytes)
{
    return group.count > 1 ? curve(k, group, bytes) : 0;
}

double plan_round(const plan_cluster *k, plan_group group, double bytes)
{
    return plan_send(k, group, bytes) + ROUND_SECONDS;
}

plan_group plan_copies_of(const plan_split *split)
{
    return (plan_group){split->copies * split->ring, split->stages * split->tensor};
}

/* Bytes in pieces of a size, each as `one` of them takes. */
static double in_pieces(double bytes, double size, double one)
{
    return bytes > size ? bytes / size * one : one;
}

/* So many bytes of gradients, a bucket at a time. */
static double sum_seconds(const plan_scene *s, const plan_split *split, plan_group group,
                          double bytes, double bucket)
{
    if (group.count == 1 || bytes <= 0)
        return 0;
    double one = split->zero > 1 ? plan_spread(&s->cluster, group, bucket)
                                 : plan_all_reduce(&s->cluster, group, bucket);
    return bytes / bucket * one;
}

/* What hides sums of gradients: kernels of a batch's backward, though not what goes between
 * processes meanwhile, since a card does one thing with others after the other. In stages it is the
 * last chunk of the first one, which has no head; the others wait for it so long or longer. */
static double hiding_seconds(const plan_scene *s, const plan_split *split, const piece *p)
{
    double part = plan_computes_twice(split) ? 0.75 : 2.0 / 3;
    if (split->stages == 1)
        return part * plan_of_stage(s, split, p->batch);
    return part * (double)plan_blocks_of(s, split) * p->batch.block / (double)split->chunks;
}

/* Those of experts go among who has the same ones. At stages 2 and 3 of ZeRO gradients go to their
 * owners behind each batch, those of stages behind the last. */
double plan_gradient_seconds(const plan_scene *s, const plan_split *split, const piece *p)
{
    double bytes = plan_of_stage(s, split, p->gradients), bucket = fmin(bytes, BUCKET);
    double experts = (double)plan_blocks_of(s, split) * p->gradients.block *
                     plan_experts_part(s, split, p->weights.block);
    if (plan_copies_of(split).count == 1 || bytes <= 0)
        return 0;
    double all = sum_seconds(s, split, plan_copies_of(split), bytes - experts, bucket) +
                 sum_seconds(s, split, plan_experts_alike(split), experts, bucket);
    double last = fmin(all, sum_seconds(s, split, plan_copies_of(split), bucket, bucket));
    double shown = fmax(0, all - last - hiding_seconds(s, split, p)) + last;
    return shown * (double)(split->zero > 1 && split->stages == 1 ? split->batches : 1);
}

/* So many bytes of weights, a parameter at a time. */
static double bring_seconds(const plan_scene *s, plan_group group, double bytes, double size)
{
    return group.count > 1 && bytes > 0
               ? in_pieces(bytes, size, plan_spread(&s->cluster, group, fmin(bytes, size)))
               : 0;
}

double plan_weight_seconds(const plan_scene *s, const plan_split *split, const piece *p)
{
    pair learned = s->training.lora_rank ? p->gradients : p->weights;
    double bytes = plan_of_stage(s, split, learned);
    double size = learned.block / LARGE_OF_BLOCK;
    double experts = (double)plan_blocks_of(s, split) * learned.block *
                     plan_experts_part(s, split, p->weights.block);
    if (plan_copies_of(split).count == 1 || !split->zero || size <= 0)
        return 0;
    double all = bring_seconds(s, plan_copies_of(split), bytes - experts, size) +
                 bring_seconds(s, plan_experts_alike(split), experts, size);
    return split->zero > 2 ? 2 * (double)split->batches * all : all;
}
