"""Small changes of the code, one at a time: which of them do the tests notice?"""
