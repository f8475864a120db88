/* A tiny engine that writes its history, to be judged: cc -O2 engine.c -o engine && ./engine 1000 0 > history.jsonl
 *
 * Arguments: how many requests to serve; 1 = with a fault (a block is given back while its request still runs).
 * It serves LANES requests side by side from a free list of blocks, without a prefix cache, a prompt in one step.
 * All it needs for `pagefault judge` is one line of JSON for each thing that happens.
 */
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_SIZE = 16, NUM_BLOCKS = 64, LANES = 4, MOST_BLOCKS = 8, MOST_TOKENS = BLOCK_SIZE * MOST_BLOCKS };

struct lane {
    long id; /* -1 = no request */
    int num_tokens, num_computed, left, num_blocks, grew;
    int table[MOST_BLOCKS];
};

static struct lane lanes[LANES];
static int free_blocks[NUM_BLOCKS + 1], num_free;
static unsigned long long seed = 1;

static int draw(int below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (int)((seed >> 33) % (unsigned)below);
}

static void submit(struct lane *lane, long id) {
    lane->id = id;
    lane->num_tokens = 1 + draw(40);
    lane->left = 1 + draw(40);
    lane->num_computed = lane->num_blocks = 0;
    printf("{\"event\":\"submit\",\"name\":\"r%ld\",\"tokens\":[", id);
    for (int i = 0; i < lane->num_tokens; i++) printf(i ? ",%d" : "%d", draw(1000));
    printf("],\"max_new_tokens\":%d}\n", lane->left);
}

static void grow(struct lane *lane) {
    lane->grew = 0;
    while (lane->num_blocks * BLOCK_SIZE < lane->num_tokens) {
        lane->table[lane->num_blocks++] = free_blocks[--num_free];
        lane->grew = 1;
    }
}

static void launch(long step) {
    const char *comma = "";
    printf("{\"event\":\"step\",\"step\":%ld,\"rows\":[", step);
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &lanes[i];
        if (lane->id < 0) continue;
        grow(lane);
        printf("%s[\"r%ld\",%d,%d,true]", comma, lane->id, lane->num_computed, lane->num_tokens);
        lane->num_computed = lane->num_tokens;
        comma = ",";
    }
    printf("],\"tables\":{");
    comma = "";
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &lanes[i];
        if (lane->id < 0 || !lane->grew) continue; /* only tables that have changed */
        printf("%s\"r%ld\":[", comma, lane->id);
        for (int b = 0; b < lane->num_blocks; b++) printf(b ? ",%d" : "%d", lane->table[b]);
        printf("]");
        comma = ",";
    }
    printf("}}\n");
}

static void finish(long step, int faulty) {
    const char *comma = "";
    printf("{\"event\":\"finish\",\"step\":%ld,\"tokens\":[", step);
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &lanes[i];
        if (lane->id < 0) continue;
        printf("%s%d", comma, draw(1000));
        comma = ",";
        lane->num_tokens++;
        if (faulty && lane->id == 20 && lane->num_blocks && num_free < NUM_BLOCKS)
            free_blocks[num_free++] = lane->table[0]; /* the fault: still in the table of request 20 */
        if (--lane->left == 0) {
            for (int b = 0; b < lane->num_blocks && num_free < NUM_BLOCKS; b++) free_blocks[num_free++] = lane->table[b];
            lane->id = -1;
        }
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    long num_requests = argc > 1 ? atol(argv[1]) : 100, next = 0, step = 0;
    int faulty = argc > 2 && atoi(argv[2]), live = 1;
    for (int i = 0; i < LANES; i++) lanes[i].id = -1;
    for (int b = NUM_BLOCKS - 1; b >= 0; b--) free_blocks[num_free++] = b;
    printf("{\"event\":\"open\",\"format\":\"pagefault history\",\"version\":1,\"engine\":\"engine.c\",\"block_size\":%d,"
           "\"num_blocks\":%d,\"max_tokens_per_step\":%d,\"max_rows\":%d}\n",
           BLOCK_SIZE, NUM_BLOCKS, LANES * MOST_TOKENS, LANES);
    while (live) {
        for (int i = 0; i < LANES; i++)
            if (lanes[i].id < 0 && next < num_requests) submit(&lanes[i], next++);
        live = 0;
        for (int i = 0; i < LANES; i++) live |= lanes[i].id >= 0;
        if (!live) break;
        launch(++step);
        finish(step, faulty);
    }
    printf("{\"event\":\"close\"}\n");
    return 0;
}
