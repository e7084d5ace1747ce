"""The processes of a run: where each stands, how they meet, agree and watch each other, who starts and ends them."""
